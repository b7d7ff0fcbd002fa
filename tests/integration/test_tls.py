"""Real nodes that show certificates, and require them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client, Tls
from querator.cli.demo.local_nodes import free_ports
from querator.client.errors import ConnectionFailed, ConnectionFault
from querator.config import PeerTlsSettings
from tests.certificates import Authority, shown_to_nodes
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import ServerProcess, run, server
from tests.integration.sdk_load import SdkLoad, check


@pytest.fixture
def papers(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "papers")


@asynccontextmanager
async def lone(home: Path, papers: Authority, *, mutual: bool) -> AsyncIterator[ServerProcess]:
    async with server(home / "data", *papers.shown_by_nodes(mutual=mutual)) as node:
        yield node


async def use(address: str, tls: Tls | None) -> None:
    """Makes every kind of call once."""
    async with Client(address, tls=tls) as client:
        await client.create_queue("q")
        async with client.producer("q") as producer:
            await producer.produce(b"work")
        [item] = await client.lease("q")
        assert item.payload == b"work"
        await item.complete()


async def refused(address: str, tls: Tls | None) -> ConnectionFailed:
    """The error that a refused client receives. It comes long before the client's time-out."""
    ample = timedelta(minutes=5)
    async with Client(address, tls=tls, connect_timeout=ample, request_timeout=ample) as client:
        with pytest.raises(ConnectionFailed) as failed:
            await client.stats("q")
    return failed.value


async def test_a_node_shows_its_certificate_and_nothing_goes_in_the_clear(
    tmp_path: Path, papers: Authority
):
    stranger = Authority(tmp_path / "stranger")
    async with lone(tmp_path, papers, mutual=False) as node:
        await use(node.address, papers.client())
        assert (await refused(node.address, None)).fault is ConnectionFault.TLS_REQUIRED
        error = await refused(node.address, stranger.client())
        assert error.fault is ConnectionFault.UNTRUSTED
        assert error.message.startswith(f"The certificate of {node.address} is not trusted: ")
        code, out, _ = await run(
            *("cluster", "status", "--output", "json", "--address", node.address),
            *("--tls-ca", str(papers.ca)),
        )
        assert code == 0
        [shown] = msgspec.json.decode(out)["nodes"]
        [certificate] = shown["certificates"]
        assert certificate["port"] == "clients"
        assert certificate["days_left"] > 0
        by_name = node.address.replace("127.0.0.1", "localhost")
        await use_again(by_name, papers.client())


async def test_a_certificate_that_is_not_for_the_name(tmp_path: Path, papers: Authority):
    options = ["--listen", "127.0.0.2:0", *papers.shown_by_nodes(mutual=False)]
    async with server(tmp_path / "data", *options) as node:
        assert node.address.startswith("127.0.0.2:")
        error = await refused(node.address, papers.client())
        assert error.fault is ConnectionFault.WRONG_NAME
        assert error.message == (
            f"The certificate of {node.address} is not trusted: not valid for 127.0.0.2 "
            "(valid for 127.0.0.1, localhost)."
        )


async def test_who_shows_nothing_or_something_else_is_not_let_in(tmp_path: Path, papers: Authority):
    stranger = Authority(tmp_path / "stranger")
    async with lone(tmp_path, papers, mutual=True) as node:
        await use(node.address, papers.client(shows=True))
        error = await refused(node.address, papers.client())
        assert error.fault is ConnectionFault.CERTIFICATE_REQUIRED
        cert, key = stranger.issue("client")
        theirs = Tls(papers.ca.read_bytes(), cert.read_bytes(), key.read_bytes())
        error = await refused(node.address, theirs)
        assert error.fault is ConnectionFault.CERTIFICATE_REFUSED
        await use_again(node.address, papers.client(shows=True))


async def use_again(address: str, tls: Tls) -> None:
    async with Client(address, tls=tls) as client:
        assert (await client.stats("q")).total.completed == 1


async def test_a_client_with_tls_says_what_is_wrong_at_a_node_without(
    tmp_path: Path, papers: Authority
):
    async with server(tmp_path / "data") as node:
        error = await refused(node.address, papers.client())
        assert error.fault is ConnectionFault.NO_TLS


async def test_commands_name_the_cause(tmp_path: Path, papers: Authority):
    async def told(address: str, *options: str) -> str:
        code, out, err = await run("stats", "--address", address, *options)
        assert (code, out) == (4, "")
        [line] = err.splitlines()
        return line

    ca = ("--tls-ca", str(papers.ca))
    stranger = Authority(tmp_path / "stranger")
    async with lone(tmp_path, papers, mutual=True) as node:
        at = node.address
        assert await told(at) == (
            f"Error: {at} requires TLS. Give --tls-ca FILE, and --tls-cert and --tls-key if it "
            "requires a client certificate."
        )
        assert await told(at, *ca) == (
            f"Error: {at} requires a client certificate. Give --tls-cert FILE and --tls-key FILE."
        )
        line = await told(at, "--tls-ca", str(stranger.ca))
        assert line.startswith(f"Error: The certificate of {at} is not trusted: ")
        assert line.endswith("Name the authority that has signed it with --tls-ca FILE.")
        assert await told(node.admin_address) == (
            f"Error: {node.admin_address} speaks HTTP: is it the admin port? Clients use 4470 by "
            "default."
        )
    async with server(tmp_path / "plain") as node:
        assert await told(node.address, *ca) == (
            f"Error: {node.address} does not use TLS. Leave out --tls, --tls-ca, --tls-cert and "
            "--tls-key."
        )


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path, papers: Authority):
    async with lone(tmp_path, papers, mutual=False) as node:
        await use(node.address, papers.client())
        newer = Authority(tmp_path / "newer")
        cert, key = newer.issue("node")
        old = tmp_path / "papers"
        os.replace(key, old / "node.key")
        os.replace(cert, old / "node.pem")
        await use_again(node.address, newer.client())


async def test_the_command_line(tmp_path: Path, papers: Authority):
    cert, key = papers.issue("operator")
    shown = ["--tls-ca", str(papers.ca), "--tls-cert", str(cert), "--tls-key", str(key)]
    async with lone(tmp_path, papers, mutual=True) as node:
        code, _, err = await run("queue", "create", "q", "--address", node.address, *shown)
        assert code == 0, err
        environment = {
            "QUERATOR_CA": str(papers.ca),
            "QUERATOR_CERT": str(cert),
            "QUERATOR_KEY": str(key),
        }
        code, out, err = await run(
            "queue", "list", "--address", node.address, environment=environment
        )
        assert code == 0, err
        assert "q" in out
        code, _, err = await run("queue", "list", "--address", node.address, "--tls-cert", "no")
        assert code == 2
        assert "go together" in err


@pytest.mark.parametrize("secure", [False, True])
async def test_the_port_for_other_nodes(tmp_path: Path, papers: Authority, secure: bool):
    token = tmp_path / "token"
    token.write_text("secret of the cluster")
    (number,) = free_ports(1)
    peers = f"127.0.0.1:{number}"
    options = ["--name", "n1", "--cluster-token-file", str(token), "--listen-peers", peers]
    if secure:
        options += shown_to_nodes(papers.peer("n1"))
    async with server(tmp_path / "data", *options):
        code, _, err = await run("stats", "--address", peers)
    assert code == 4
    assert err.startswith(f"Error: {peers} ")
    assert "is it the port for other nodes? Clients use 4470 by default." in err


async def test_grpc_reports_refused_handshakes_without_the_address(
    tmp_path: Path, papers: Authority
):
    """What docs/operating.md says about the node's log. If gRPC names the address one day, or
    offers an event, the node should log it.
    """
    node = ServerProcess(tmp_path / "data", *papers.shown_by_nodes(mutual=True))
    node.environment["GRPC_VERBOSITY"] = "info"
    await node.start()
    try:
        await refused(node.address, papers.client())
        lines = [line for line in node.log.read_text().splitlines() if "Handshake failed" in line]
        assert lines
        assert all("PEER_DID_NOT_RETURN_A_CERTIFICATE" in line for line in lines)
        assert not any("127.0.0.1" in line for line in lines)
    finally:
        await node.kill()


async def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path, papers: Authority):
    cert, _ = papers.issue("node")
    code, _, err = await run(
        "serve", "--data-dir", str(tmp_path / "data"), "--new", "--listen", "127.0.0.1:0",
        "--listen-admin", "", "--tls-cert-file", str(cert), "--tls-key-file", str(papers.ca),
    )  # fmt: skip
    assert code == 1
    assert f"cert: {cert} and key: {papers.ca} cannot be used" in err


async def test_nodes_of_a_cluster_pass_calls_on_by_mutual_tls(tmp_path: Path, papers: Authority):
    shown = papers.shown_by_nodes(mutual=True)
    cluster = ProcessCluster(tmp_path, "abc", *shown, "--tls-ca-file", str(papers.ca))
    await cluster.start()
    try:
        tls = papers.client(shows=True)
        async with Client(cluster["a"].address, tls=tls) as client:
            await client.create_queue("q", partitions=3)
        for name in "abc":
            async with asyncio.timeout(60), Client(cluster[name].address, tls=tls) as client:
                for number in range(6):
                    await client.produce("q", b"%d" % number)
                leased = 0
                while leased < 6:
                    for item in await client.lease("q", max_items=6):
                        await item.complete()
                        leased += 1
        assert "link" not in refused_links(cluster)

        # All get another authority, and the links of one node begin again.
        newer = Authority(tmp_path / "newer")
        tls = newer.client(shows=True)
        cert, key = newer.issue("node")
        old = tmp_path / "papers"
        for source, name in ((key, "node.key"), (cert, "node.pem"), (newer.ca, "ca.pem")):
            os.replace(source, old / name)
        assert await cluster["c"].stop() == 0
        await cluster.start("c")
        for name in "abc":
            async with asyncio.timeout(60), Client(cluster[name].address, tls=tls) as client:
                for number in range(6):
                    await client.produce("q", b"%d" % number)
        assert "link" not in refused_links(cluster)
        await cluster.stop()
    finally:
        for name in "abc":
            if cluster[name].running:
                await cluster[name].kill()


async def test_nodes_talk_by_mutual_tls_under_load_while_one_is_killed(
    tmp_path: Path, papers: Authority
):
    async with process_cluster(tmp_path) as cluster:
        for name in "abc":
            cluster[name].options += shown_to_nodes(papers.peer(name))
        await cluster.start()
        load = SdkLoad(",".join(cluster[name].address for name in "abc"))

        async def kill_and_restart() -> None:
            await cluster["b"].kill()
            await cluster.until(lambda view: any(one["why"] for one in view["nodes"]))
            await cluster["b"].start()
            await cluster.until_well("b")
            # The certificate that it showed has expired meanwhile. It is let in again with another
            # one.
            assert await cluster["c"].stop() == 0
            old = cluster["c"].options
            cluster["c"].options = old[:-6] + shown_to_nodes(papers.peer("c", expired=True))
            await cluster["c"].launch()
            await cluster["a"].says("peers.refused", "certificate has expired")
            await cluster["c"].says("peers.refused_by_peer", "certificate expired")
            await cluster["c"].kill()
            cluster["c"].options = old[:-6] + shown_to_nodes(papers.peer("c"))
            await cluster["c"].start()
            await cluster.until_well("c")

        await load.run(kill_and_restart)
        await check(load)


async def test_files_for_the_peer_port_that_cannot_be_used_stop_the_start(
    tmp_path: Path, papers: Authority
):
    async with process_cluster(tmp_path) as cluster:
        cert, _ = papers.issue("node")
        wrong = PeerTlsSettings(str(cert), str(papers.ca), str(papers.ca))
        cluster["a"].options += shown_to_nodes(wrong)
        await cluster["a"].launch()
        line = await cluster["a"].refused()
        assert f"peer_tls_key_file: {papers.ca} cannot be used" in line


async def test_one_node_of_three_without_tls_is_told_so(tmp_path: Path, papers: Authority):
    async with process_cluster(tmp_path) as cluster:
        for name in "ab":
            cluster[name].options += shown_to_nodes(papers.peer(name))
        for name in "abc":
            await cluster[name].launch()
        await cluster["c"].waiting("it talks without TLS, which this node requires")
        await cluster["a"].waiting("c (")
        await cluster["a"].says("peers.refused", "it talks without TLS")
        await cluster["c"].says("peers.refused", "it asks for TLS")
        assert await cluster["c"].stop() == 0
        cluster["c"].options += shown_to_nodes(papers.peer("c"))
        await cluster.start("c")
        await cluster["a"].ready()
        await cluster["b"].ready()
        await cluster.until_well()


def refused_links(cluster: ProcessCluster) -> str:
    """Refused links that the nodes have logged."""
    return " ".join(
        str(record["event"])
        for member in cluster.by_name.values()
        for record in member.records
        if "refused" in str(record["event"])
    )
