from pathlib import Path
from typing import Any

import pytest

from querator.config import (
    GROUPS,
    SETTINGS,
    ClusterSettings,
    Config,
    ConfigError,
    PeerTlsSettings,
    TlsSettings,
    cluster_settings,
    load,
    markdown,
    parse_address,
    tls_settings,
)

DATA = {"data_dir": "d"}
DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"


def problem(
    tmp_path: Path, *, toml: str = "", environment: dict[str, str] | None = None, **flags: object
) -> str:
    file = tmp_path / "querator.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError) as caught:
        load(flags=flags, environment=environment or {}, file=file)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults():
    assert load(flags=DATA, environment={}) == Config(data_dir="d")


def test_flag_before_environment_before_file_before_default(tmp_path: Path):
    file = tmp_path / "querator.toml"
    file.write_text('data_dir = "file"\nlisten = "127.0.0.1:1"\nnew = true\nlog_level = "error"\n')
    environment = {"QUERATOR_LISTEN": "127.0.0.1:2", "QUERATOR_LOG_LEVEL": "warning"}
    config = load(flags={"log_level": "debug"}, environment=environment, file=file)
    assert config == Config(data_dir="file", new=True, listen="127.0.0.1:2", log_level="debug")


def test_the_environment_may_name_the_file(tmp_path: Path):
    file = tmp_path / "querator.toml"
    file.write_text("memory = true\n")
    assert load(flags={}, environment={"QUERATOR_CONFIG": str(file)}) == Config(memory=True)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("0", False), ("False", False)]
)
def test_switches_in_the_environment(text: str, value: bool):
    assert load(flags=DATA, environment={"QUERATOR_NEW": text}).new is value


def test_numbers_in_the_environment():
    config = load(flags=DATA, environment={"QUERATOR_STORAGE_QUOTA_BYTES": "600000000"})
    assert config.storage_quota_bytes == 600_000_000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("600000000", 600_000_000),
        ("10GiB", 10 << 30),
        ("10gib", 10 << 30),
        ("1.5 GiB", 3 << 29),
        ("10GB", 10_000_000_000),
        ("2TiB", 2 << 40),
        ("1048576KiB", 1 << 30),
        ("900000000B", 900_000_000),
    ],
)
def test_sizes_with_units(tmp_path: Path, text: str, size: int):
    for sources in (
        {"flags": DATA | {"storage_quota_bytes": text}, "environment": {}},
        {"flags": DATA, "environment": {"QUERATOR_STORAGE_QUOTA_BYTES": text}},
    ):
        assert load(**sources).storage_quota_bytes == size  # type: ignore[arg-type]
    file = tmp_path / "querator.toml"
    file.write_text(f'storage_quota_bytes = "{text}"')
    assert load(flags=DATA, environment={}, file=file).storage_quota_bytes == size


@pytest.mark.parametrize("text", ["10 XiB", "GiB", "-1GiB", "1e9", "0.1B", "", "٣GiB", "1,5GiB"])
def test_texts_that_are_no_sizes(tmp_path: Path, text: str):
    message = problem(tmp_path, environment={"QUERATOR_STORAGE_QUOTA_BYTES": text})
    assert message == (
        f"QUERATOR_STORAGE_QUOTA_BYTES: {text!r} is not a size; write a number of bytes, or for "
        "example 10GiB"
    )


def test_a_small_quota_is_refused_by_name_limit_and_value():
    with pytest.raises(ConfigError, match=r"storage_quota_bytes is 1000; the least is 536870912"):
        load(flags=DATA | {"storage_quota_bytes": 1000}, environment={})


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("memory = \n", ["not TOML", "line 1"]),
        ("datadir = 'x'", ["datadir", "did you mean data_dir?"]),
        ("colour = 'x'", ["there is no setting 'colour'"]),
        ("memory = 'yes'", ["memory is 'yes'; write true or false"]),
        ("memory = 1", ["memory is 1; write true or false"]),
        ("data_dir = 7", ["data_dir is 7; write a text"]),
        ("storage_quota_bytes = -1", ["storage_quota_bytes is -1", "for example 10GiB, from 0 on"]),
        ("storage_quota_bytes = '10 boxes'", ["storage_quota_bytes: '10 boxes' is not a size"]),
        ("log_bytes_kept = 1000", ["log_bytes_kept is 1000", "from 1048576 on"]),
        (
            "shutdown_timeout_ms = '5'",
            ["shutdown_timeout_ms is '5'", "whole number from 0 to 600000"],
        ),
        ("log_level = 'loud'", ["log_level is 'loud'; write one of debug, info, warning, error"]),
        ("[server]\nlisten = 'x'", ["server"]),
    ],
)
def test_bad_files(tmp_path: Path, toml: str, words: list[str]):
    message = problem(tmp_path, toml=toml)
    for word in ["querator.toml", *words]:
        assert word in message


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load(flags=DATA, environment={}, file=tmp_path / "nowhere.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(flags=DATA, environment={}, file=binary)


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("QUERATOR_DATADIR", "x", ["QUERATOR_DATADIR", "QUERATOR_DATA_DIR"]),
        ("QUERATOR_MEMORY", "yes", ["QUERATOR_MEMORY is 'yes'; write true or false"]),
        ("QUERATOR_SHUTDOWN_TIMEOUT_MS", "soon", ["QUERATOR_SHUTDOWN_TIMEOUT_MS is 'soon'"]),
    ],
)
def test_bad_environment(tmp_path: Path, variable: str, text: str, words: list[str]):
    message = problem(tmp_path, environment={variable: text})
    for word in words:
        assert word in message


def test_variables_of_others_are_left_alone():
    environment = {
        "QUERATOR_SERVICE_HOST": "10.0.0.1",
        "QUERATOR_SERVICE_PORT": "4470",
        "QUERATOR_SERVICE_PORT_CLIENTS": "4470",
        "QUERATOR_PORT": "tcp://10.0.0.1:4470",
        "QUERATOR_PORT_4470_TCP": "tcp://10.0.0.1:4470",
        "QUERATOR_PORT_4470_TCP_PROTO": "tcp",
        "QUERATOR_PEERS_PORT": "tcp://10.0.0.2:4472",
        "QUERATOR_PEERS_SERVICE_HOST": "10.0.0.2",
        # Variables of the other commands.
        "QUERATOR_ADDRESS": "127.0.0.1:1",
        "QUERATOR_NAMESPACE": "default",
        "QUERATOR_TLS": "1",
        "QUERATOR_CA": "ca.pem",
        "QUERATOR_CERT": "cert.pem",
        "QUERATOR_KEY": "key.pem",
        "HOME": "/",
    }
    assert load(flags=DATA, environment=environment) == Config(data_dir="d")


def test_settings_that_exclude_each_other(tmp_path: Path):
    assert "exclude each other" in problem(tmp_path, data_dir="d", memory=True)
    assert "--data-dir" in problem(tmp_path)


@pytest.mark.parametrize(
    ("listen", "insecure", "allowed"),
    [
        ("127.0.0.1:0", False, True),
        ("127.9.9.9:4470", False, True),
        ("[::1]:4470", False, True),
        ("localhost:4470", False, True),
        ("0.0.0.0:4470", False, False),
        ("[::]:4470", False, False),
        ("node-0.example:4470", False, False),
        ("0.0.0.0:4470", True, True),
    ],
)
def test_only_loopback_without_insecure(tmp_path: Path, listen: str, insecure: bool, allowed: bool):
    if allowed:
        flags = {**DATA, "listen": listen, "insecure": insecure}
        assert load(flags=flags, environment={}).listen == listen
    else:
        message = problem(tmp_path, data_dir="d", listen=listen, insecure=insecure)
        assert "--insecure" in message


TLS: dict[str, Any] = {"tls_cert_file": "c.pem", "tls_key_file": "k.pem"}


def test_clients_that_show_who_they_are_may_come_from_elsewhere(tmp_path: Path):
    message = problem(tmp_path, data_dir="d", listen="0.0.0.0:4470", **TLS)
    assert "--tls-client-ca-file" in message
    flags = {**DATA, **TLS, "listen": "0.0.0.0:4470", "tls_client_ca_file": "ca.pem"}
    config = load(flags=flags, environment={})
    assert tls_settings(config) == TlsSettings("c.pem", "k.pem", client_ca_file="ca.pem")
    assert tls_settings(load(flags=DATA, environment={})) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tls_key_file": ""}, ["tls_key_file is missing"]),
        ({"tls_cert_file": ""}, ["tls_key_file has no effect without tls_cert_file"]),
        ({"tls_ca_file": "ca.pem"}, ["tls_ca_file has no effect without peers"]),
        (
            {f"peer_tls_{what}_file": "x" for what in ("cert", "key", "ca")},
            ["peer_tls_cert_file has no effect without cluster_token_file"],
        ),
    ],
)
def test_settings_of_tls_that_make_no_sense(
    tmp_path: Path, changes: dict[str, object], words: list[str]
):
    flags: dict[str, Any] = {"data_dir": "d"} | TLS | changes
    message = problem(tmp_path, **flags)
    for word in words:
        assert word in message


def test_the_admin_port_as_the_clients_port(tmp_path: Path):
    message = problem(tmp_path, data_dir="d", listen_admin="0.0.0.0:4471")
    assert message.startswith("listen_admin: 0.0.0.0:4471")
    assert "add --insecure-admin" in message
    assert problem(tmp_path, data_dir="d", listen_admin="here").startswith("listen_admin: 'here'")
    for switch in ("insecure", "insecure_admin"):
        flags = {**DATA, "listen_admin": "0.0.0.0:4471", switch: True}
        assert load(flags=flags, environment={}).listen_admin == "0.0.0.0:4471"
    alone = problem(tmp_path, data_dir="d", listen="0.0.0.0:4470", insecure_admin=True)
    assert alone.startswith("listen: 0.0.0.0:4470")
    assert load(flags={**DATA, "listen_admin": ""}, environment={}).listen_admin == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "127.0.0.1",
        "127.0.0.1:",
        ":4470",
        "::1:4470",
        "h:65536",
        "h:-1",
        "h:٣",
        "h:99999",
        "h:111111111111",
        "http://h:4470",
        "h/x:1",
        "h h:1",
    ],
)
def test_malformed_addresses(text: str):
    with pytest.raises(ConfigError, match="listen"):
        parse_address(text)


def test_addresses():
    assert parse_address("127.0.0.1:4470") == ("127.0.0.1", 4470)
    assert parse_address("[::1]:0") == ("::1", 0)


CLUSTER = {
    "data_dir": "d",
    "name": "b",
    "peers": "a=h1:1,b=h2:1, c=[::1]:2",
    "cluster_token_file": "t",
    "listen": "127.0.0.1:4470",
}


def test_the_settings_of_a_cluster(tmp_path: Path):
    token = tmp_path / "token"
    token.write_bytes(b"0123456789abcdef\n")
    flags = CLUSTER | {"cluster_token_file": str(token), "initial_nodes": 2, "zone": "z"}
    settings = cluster_settings(load(flags=flags, environment={}))
    assert settings == ClusterSettings(
        name="b",
        peers={"a": "h1:1", "b": "h2:1", "c": "[::1]:2"},
        founds_with=("a", "b"),
        token=b"0123456789abcdef",
        listen_peers="h2:1",
        client_address="",
        zone="z",
    )
    more = {"listen_peers": "0.0.0.0:1", "advertise_client": "here:9", "initial_nodes": 0}
    settings = cluster_settings(load(flags=flags | more, environment={}))
    assert settings is not None
    assert settings.founds_with == ("a", "b", "c")
    assert (settings.listen_peers, settings.client_address) == ("0.0.0.0:1", "here:9")
    assert cluster_settings(load(flags=DATA, environment={})) is None


def test_the_certificates_of_the_port_for_other_nodes(tmp_path: Path):
    token = tmp_path / "token"
    token.write_bytes(b"0123456789abcdef\n")
    files = {f"peer_tls_{what}_file": f"{what}.pem" for what in ("cert", "key", "ca")}
    flags = CLUSTER | {"cluster_token_file": str(token)} | files
    settings = cluster_settings(load(flags=flags, environment={}))
    assert settings is not None
    assert settings.tls == PeerTlsSettings("cert.pem", "key.pem", "ca.pem")


JOINED = {
    "data_dir": "d",
    "name": "a",
    "cluster_token_file": "t",
    "listen_peers": "h:1",
    "listen": "127.0.0.1:4470",
}


@pytest.mark.parametrize("new", [True, False])
def test_a_node_that_begins_alone_and_that_others_join(tmp_path: Path, new: bool):
    token = tmp_path / "token"
    token.write_bytes(b"0123456789abcdef\n")
    flags = JOINED | {"cluster_token_file": str(token), "new": new}
    settings = cluster_settings(load(flags=flags, environment={}))
    assert settings is not None
    assert (settings.peers, settings.founds_with) == ({"a": "h:1"}, ())
    assert settings.listen_peers == "h:1"

    elsewhere = {"peers": "a=here:1", "listen_peers": "0.0.0.0:1"}
    settings = cluster_settings(load(flags=flags | elsewhere, environment={}))
    assert settings is not None
    assert (settings.peers, settings.listen_peers) == ({"a": "here:1"}, "0.0.0.0:1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, ["name is missing: with cluster_token_file", "node-1"]),
        ({"listen_peers": ""}, ["listen_peers is missing: with cluster_token_file"]),
        ({"listen_peers": "x"}, ["listen_peers: 'x' is not HOST:PORT"]),
        (
            {"listen_peers": "0.0.0.0:1"},
            ["not an address that others can connect to", "--peers a="],
        ),
        ({"listen_peers": "h:0"}, ["not an address that others can connect to", "--peers a="]),
        ({"initial_nodes": 1}, ["initial_nodes has no effect without peers"]),
        ({"memory": True, "data_dir": ""}, ["memory and cluster_token_file exclude each other"]),
        ({"cluster_token_file": ""}, ["listen_peers has no effect without cluster_token_file"]),
        ({"listen": "0.0.0.0:1", "insecure": True}, ["advertise_client is missing"]),
        ({"tls_cert_file": "c.pem", "tls_key_file": "k.pem"}, ["tls_ca_file is missing"]),
        ({"peers": "a=h:1,b=h:2", "new": True}, ["new and peers exclude each other", "only this"]),
    ],
)
def test_settings_of_a_node_that_others_join_that_make_no_sense(
    tmp_path: Path, changes: dict[str, object], words: list[str]
):
    flags: dict[str, Any] = JOINED | changes
    message = problem(tmp_path, **flags)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peers": "a"}, ["peers: 'a' is not NAME=HOST:PORT"]),
        ({"peers": "a=h:1,,b=h:2"}, ["peers: '' is not NAME=HOST:PORT"]),
        ({"peers": "a=h:1,a=h:2,b=h:3"}, ["a appears twice"]),
        ({"peers": "a=h:1,b=h:1"}, ["h:1 appears twice"]),
        ({"peers": "a=h:0,b=h:1"}, ["'h:0' is not an address that others can connect to"]),
        ({"peers": "a=0.0.0.0:1,b=h:1"}, ["not an address that others can connect to"]),
        ({"peers": "a=h,b=h:1"}, ["'h' is not HOST:PORT"]),
        ({"peers": "a b=h:1"}, ["'a b' is not a node name"]),
        ({"name": ""}, ["name is missing", "--name NAME"]),
        ({"name": "x"}, ["x, which is this node, is not among a, b, c"]),
        ({"name": "a/b"}, ["'a/b' is not a node name"]),
        ({"memory": True, "data_dir": ""}, ["memory and peers exclude each other"]),
        ({"new": True}, ["new and peers exclude each other"]),
        ({"initial_nodes": 4}, ["initial_nodes is 4", "only 3 nodes"]),
        ({"initial_nodes": 8}, ["--initial-nodes", "from 0 to 7"]),
        ({"cluster_token_file": ""}, ["cluster_token_file is missing"]),
        ({"listen_peers": "x"}, ["listen_peers: 'x' is not HOST:PORT"]),
        ({"advertise_client": "h:0"}, ["advertise_client", "not an address that others"]),
        ({"listen": "0.0.0.0:1", "insecure": True}, ["advertise_client is missing"]),
        ({"peers": ""}, ["listen_peers is missing: with cluster_token_file and without peers"]),
        (
            {"peers": "", "cluster_token_file": "", "initial_nodes": 1},
            ["initial_nodes has no effect"],
        ),
        (
            {"tls_cert_file": "c.pem", "tls_key_file": "k.pem"},
            ["tls_ca_file is missing", "sign for the other nodes"],
        ),
        ({"peer_tls_cert_file": "c", "peer_tls_ca_file": "a"}, ["peer_tls_key_file is missing"]),
        ({"peer_tls_cert_file": "c", "peer_tls_key_file": "k"}, ["peer_tls_ca_file is missing"]),
        (
            {"peer_tls_key_file": "k"},
            ["peer_tls_key_file has no effect without peer_tls_cert_file"],
        ),
        ({"peer_tls_ca_file": "a"}, ["peer_tls_ca_file has no effect without peer_tls_cert_file"]),
        (
            {"peers": ",".join(f"n{i}=h{i}:1" for i in range(8)), "name": "n1"},
            ["initial_nodes is missing", "8 nodes", "at most 7"],
        ),
    ],
)
def test_settings_of_a_cluster_that_make_no_sense(
    tmp_path: Path, changes: dict[str, object], words: list[str]
):
    flags: dict[str, Any] = CLUSTER | changes
    message = problem(tmp_path, **flags)
    for word in words:
        assert word in message


@pytest.mark.parametrize("size", [0, 15, 4097])
def test_a_token_that_is_too_short_or_too_long(tmp_path: Path, size: int):
    token = tmp_path / "token"
    token.write_bytes(b"x" * size)
    config = load(flags=CLUSTER | {"cluster_token_file": str(token)}, environment={})
    with pytest.raises(ConfigError, match=f"holds {size} bytes; it must be 16 to 4096"):
        cluster_settings(config)


def test_a_token_that_is_not_there(tmp_path: Path):
    flags = CLUSTER | {"cluster_token_file": str(tmp_path / "nothing")}
    with pytest.raises(ConfigError, match="nothing: No such file"):
        cluster_settings(load(flags=flags, environment={}))


def test_every_setting_is_described_in_the_docs():
    assert all(setting.description.endswith(".") for setting in SETTINGS)
    assert markdown() in DOCS.read_text(), "generate it again: see the file's first lines"


def test_the_docs_have_each_setting_in_one_group():
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(setting.name for setting in SETTINGS)
