"""Failures of commands as one line."""

import pytest

from querator.cli.shared.failures import Failure, explained
from querator.client.errors import AddressFault, ConnectionFault, ErrorCode, make_error
from querator.client.transport.rpc_errors import connection_failed

START = "Start a node with: querator serve --data-dir ./data --new"
IS_IT_UP = "Nothing listens there: is the node up?"
NOT_YET = "A node that waits for its cluster does not listen yet; its log says for what it waits."


def told(*faults: AddressFault) -> str:
    with pytest.raises(Failure) as failed, explained():
        raise connection_failed(faults)
    assert failed.value.exit_code == 4
    return failed.value.message


def refused(address: str) -> AddressFault:
    return AddressFault(address, ConnectionFault.REFUSED, f"Connection refused at {address}.")


def test_only_at_the_default_address_a_node_is_to_be_started():
    default = "127.0.0.1:4470"
    assert told(refused(default)) == f"Connection refused at {default}. {NOT_YET} {START}"
    for other in ("127.0.0.1:5470", "10.0.0.1:4470"):
        assert told(refused(other)) == f"Connection refused at {other}. {IS_IT_UP} {NOT_YET}"


def test_several_addresses_and_one_remedy():
    tls = [
        AddressFault(at, ConnectionFault.NO_TLS, f"{at} does not use TLS.") for at in ("a:1", "b:1")
    ]
    assert told(*tls, refused("c:1")) == (
        "No server can be reached. a:1 does not use TLS. b:1 does not use TLS. Connection refused "
        "at c:1. Leave out --tls, --tls-ca, --tls-cert and --tls-key. "
        f"{IS_IT_UP} {NOT_YET}"
    )


def test_an_expired_certificate_is_renewed_and_no_other_authority_is_asked_for():
    text = "The certificate of a:1 is not trusted: certificate has expired."
    said = told(AddressFault("a:1", ConnectionFault.UNTRUSTED, text))
    assert said.startswith(f"{text} Renew it: ")
    assert "--tls-ca" not in said
    text = "The certificate of a:1 is not trusted: self-signed certificate."
    assert "--tls-ca" in told(AddressFault("a:1", ConnectionFault.UNTRUSTED, text))


def test_paused_producers_are_refused_by_the_server():
    with pytest.raises(Failure) as failed, explained():
        raise make_error(ErrorCode.QUEUE_PAUSED, "producers of queue mail are paused")
    assert failed.value.exit_code == 3
    assert failed.value.message == (
        "Producers of queue mail are paused (QUEUE_PAUSED). "
        "Let them continue with: querator queue resume"
    )
