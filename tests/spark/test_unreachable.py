"""A process of Spark that reaches no node names the cause; without a session."""

from pathlib import Path

import pytest

from querator.spark.options import Target
from querator.spark.rpc import Cluster, Unreachable
from tests.certificates import Authority
from tests.unit.client.ports import grpc_port, odd_port, saying


@pytest.fixture
def papers(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "papers")


def told(*endpoints: str, seconds: float, ca: str = "") -> str:
    with pytest.raises(Unreachable) as failed:
        Cluster(Target(endpoints, ca, "", "")).stats("default", "q", retry_seconds=seconds)
    return str(failed.value)


def test_what_does_not_pass_ends_the_attempts_at_once(papers: Authority):
    with grpc_port(papers) as secure:
        assert f"({secure} requires TLS.)" in told(secure, seconds=600)
        with odd_port(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as admin:
            said = told(secure, admin, seconds=600)
            assert f"{secure} requires TLS. {admin} speaks HTTP" in said
    with grpc_port(None) as plain:
        assert f"({plain} does not use TLS.)" in told(plain, seconds=600, ca=str(papers.ca))


def test_what_may_pass_is_tried_again():
    said = told("127.0.0.1:1", seconds=0.2)
    assert "(Connection refused at 127.0.0.1:1.)" in said
    assert "--advertise-client" in said
