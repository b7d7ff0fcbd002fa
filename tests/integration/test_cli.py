"""The command line against a real node: what a person types and sees, and the exit code."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.processes import ServerProcess, run, server


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    async with server(tmp_path / "data") as process:
        yield process


class Cli:
    """Runs `querator` with the node's address; returns its JSON output, or its refusal."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def lines(self, *command: str, stdin: bytes = b"") -> list[Any]:
        """JSON documents of a command that must succeed."""
        code, out, err = await self.raw(*command, "--output", "json", stdin=stdin)
        assert code == 0, err
        return [msgspec.json.decode(line) for line in out.splitlines()]

    async def raw(self, *command: str, stdin: bytes = b"") -> tuple[int, str, str]:
        return await run(*command, "--address", self.address, stdin=stdin)

    async def ok(self, *command: str, stdin: bytes = b"") -> str:
        code, out, err = await self.raw(*command, stdin=stdin)
        assert code == 0, err
        return out

    async def refused(self, *command: str, stdin: bytes = b"") -> tuple[int, str]:
        """Exit code, and the one line with the reason."""
        code, out, err = await self.raw(*command, stdin=stdin)
        assert code != 0
        assert out == ""
        assert err.startswith("Error: ")
        assert err.count("\n") == 1, err
        return code, err

    async def counts(self, queue: str) -> dict[str, int]:
        (stats,) = await self.lines("stats", queue)
        total: dict[str, int] = stats["total"]
        return total


@pytest.fixture
async def cli(node: ServerProcess) -> Cli:
    return Cli(node.address)


async def test_a_queue_from_create_to_delete(cli: Cli) -> None:
    await cli.ok("queue", "create", "dead")
    create = ("queue", "create", "mail", "--partitions", "2", "--dead-queue", "dead")
    assert await cli.ok(*create) == "Created queue mail.\n"
    assert await cli.ok(*create) == "Queue mail was there.\n"
    code, line = await cli.refused("queue", "create", "mail", "--partitions", "3")
    assert (code, "QUEUE_EXISTS" in line) == (3, True)
    await cli.ok("queue", "update", "mail", "--lease-timeout", "1m30s", "--max-attempts", "7")
    (info,) = await cli.lines("queue", "info", "mail")
    assert (info["lease_timeout_ms"], info["max_attempts"]) == (90_000, 7)
    assert (info["partitions"], info["dead_queue"], info["state"]) == (2, "dead", "active")
    version = str(info["settings_version"] - 1)
    stale = ("--expected-version", version) if version != "0" else ("--expected-version", "99")
    code, line = await cli.refused("queue", "update", "mail", "--max-attempts", "8", *stale)
    assert (code, "VERSION_CONFLICT" in line) == (3, True)
    (queues,) = await cli.lines("queue", "list")
    assert [queue["name"] for queue in queues] == ["dead", "mail"]
    assert "mail" in await cli.ok("queue", "list")
    assert await cli.ok("queue", "delete", "mail", "--yes") == "Deleted queue mail.\n"
    code, line = await cli.refused("stats", "mail")
    assert (code, "QUEUE_" in line) == (3, True)


async def test_an_item_by_hand(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail")
    ids = (await cli.ok("produce", "mail", "one", "two", "--kind", "note")).split()
    assert len(ids) == 2
    one, two = await cli.lines("lease", "mail", "--max-items", "2", "--wait", "5s")
    assert [one["id"], two["id"]] == ids
    assert (one["item"]["payload"], one["item"]["kind"], one["attempt"]) == ("one", "note", 1)
    lease = one["lease_id"]
    (extended,) = await cli.lines("extend", "mail", lease, "--lease-timeout", "1h")
    assert extended["lease_remaining_ms"] > 3_500_000
    (settled,) = await cli.lines("complete", "mail", lease, ids[0])
    assert (settled["done"], settled["lost"]) == ([ids[0]], [])
    (again,) = await cli.lines("complete", "mail", lease, ids[0])
    assert (again["done"], again["repeated"]) == ([], [ids[0]])
    assert await cli.ok("retry", "mail", two["lease_id"], ids[1], "--delay", "1h", "--error", "no")
    (waiting,) = await cli.lines("peek", "mail", "--state", "scheduled")
    assert (waiting["id"], waiting["errors"]) == (ids[1], ["no"])
    code, line = await cli.refused("complete", "mail", two["lease_id"], ids[1])
    assert (code, "LEASE_LOST" in line) == (3, True)
    code, line = await cli.refused("complete", "mail", "ffff.0.1")
    assert (code, "LEASE_LOST" in line) == (3, True)
    assert await cli.lines("lease", "mail") == []


async def test_all_leases_of_a_client_are_extended(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "2")
    await cli.ok("produce", "mail", "one")
    await cli.ok("produce", "mail", "two")
    lease = ("lease", "mail", "--wait", "5s", "--client-id")
    mine = [(await cli.lines(*lease, "me"))[0]["lease_id"] for _ in range(2)]
    extend = ("extend", "mail", "--lease-timeout", "1h", "--client-id")
    extended = await cli.lines(*extend, "me")
    assert {outcome["lease_id"] for outcome in extended} == set(mine)
    assert all(outcome["lease_remaining_ms"] > 3_500_000 for outcome in extended)
    assert await cli.lines(*extend, "nobody") == []


async def test_dead_letters_go_and_come_back(cli: Cli) -> None:
    await cli.ok("queue", "create", "dead")
    await cli.ok("queue", "create", "mail", "--dead-queue", "dead")
    await cli.ok("produce", "mail", "x")
    (leased,) = await cli.lines("lease", "mail", "--wait", "5s")
    await cli.ok("retry", "mail", leased["lease_id"], "--dead", "--error", "no such mailbox")
    (taken,) = await cli.lines("lease", "dead", "--wait", "10s")
    assert taken["dead_letter"]["origin_id"] == leased["id"]
    await cli.ok("retry", "dead", taken["lease_id"], "--release")
    (letter,) = await cli.lines("dead", "list", "mail")
    assert letter["dead_letter"]["reason"] == "rejected"
    assert letter["dead_letter"]["errors"] == ["no such mailbox"]
    assert "no such mailbox" in await cli.ok("dead", "list", "mail")
    assert await cli.lines("dead", "redrive", "mail", letter["id"]) == [{"redriven": 1}]
    (back,) = await cli.lines("lease", "mail", "--wait", "10s")
    assert back["item"]["payload"] == "x"


async def test_bad_lines_are_named_and_the_others_stored(cli: Cli, tmp_path: Path) -> None:
    await cli.ok("queue", "create", "mail")
    big = b"x" * (1 << 20) + b"y"
    code, out, err = await cli.raw("produce", "mail", stdin=b"good\n" + big + b"\nlast\n")
    assert code == 1
    assert "2 items" in out
    assert err.startswith("line 2: payload is 1048577 bytes; the limit is 1048576 bytes")
    lines = b'{"payload": 1}\nnonsense\n{"payload": "b", "kind": "k"}\n'
    code, out, err = await cli.raw("produce", "mail", "--json-lines", stdin=lines)
    assert (code, "2 items" in out, err.count("\n")) == (1, True, 1)
    table = tmp_path / "table.csv"
    table.write_text("id,name\n1,ann\n2\n3,cat\n")
    code, out, err = await cli.raw("produce", "mail", "--csv", str(table), "--key-column", "id")
    assert (code, "2 items" in out, "line 3" in err) == (1, True, True)
    items = [peeked["item"] for peeked in await cli.lines("peek", "mail")]
    assert {item["payload"] for item in items} == {
        "good", "last", "1", "b", '{"id":"1","name":"ann"}', '{"id":"3","name":"cat"}',
    }  # fmt: skip
    code, line = await cli.refused("produce", "mail", "--csv", str(tmp_path / "none.csv"))
    assert (code, "none.csv" in line) == (1, True)


async def test_a_load_can_be_repeated(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "4")
    load = ("produce", "mail", "--dedup-prefix", "load-1")
    lines = b"".join(b"%d\n" % n for n in range(500))
    (first,) = await cli.lines(*load, stdin=lines)
    (second,) = await cli.lines(*load, stdin=lines)
    assert (first["produced"], first["duplicates"]) == (500, 0)
    assert (second["produced"], second["duplicates"]) == (0, 500)
    assert (await cli.counts("mail"))["ready"] == 500


async def test_an_ordered_load_keeps_its_order(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "4")
    lines = b"".join(b"%d\n" % n for n in range(1_000))
    await cli.ok("produce", "mail", "--ordered", stdin=lines)
    leased = await cli.lines("lease", "mail", "--max-items", "1000", "--wait", "5s")
    assert [int(one["item"]["payload"]) for one in leased] == list(range(1_000))


async def test_a_command_for_each_item(cli: Cli) -> None:
    await cli.ok("queue", "create", "dead")
    await cli.ok("queue", "create", "work", "--dead-queue", "dead")
    await cli.ok("produce", "work", "fine", "busy", "never", "--attribute", "a=b", "--key", "k")
    command = (
        'read -r word; echo "$word $QUERATOR_ATTEMPT $QUERATOR_KEY $QUERATOR_ATTRIBUTES"; '
        'case "$word" in fine) exit 0;; busy) echo later >&2; exit 1;; *) echo bad >&2; exit 100;; '
        "esac"
    )
    code, out, err = await cli.raw(
        "consume", "work", "--exec", command, "--retry-delay", "1h", "--limit", "3",
        "--concurrency", "2",
    )  # fmt: skip
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f'{word} 1 k {{"a":"b"}}' for word in ("busy", "fine", "never")
    ]
    assert "1 completed, 1 retried, 1 rejected." in err
    (waiting,) = await cli.lines("peek", "work", "--state", "scheduled")
    assert (waiting["item"]["payload"], waiting["errors"]) == ("busy", ["later"])
    counts = await cli.counts("work")
    assert (counts["completed"], counts["dead"]) == (1, 1)


async def test_commands_run_side_by_side_and_a_signal_gives_their_items_back(
    cli: Cli, tmp_path: Path
) -> None:
    await cli.ok("queue", "create", "work")
    await cli.ok("produce", "work", "a", "b", "c")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "consume", "work", "--address", cli.address,
        "--concurrency", "2", "--stop-timeout", "100ms",
        "--exec", "echo $$; exec sleep 1000",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    begun = [int(await process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert process.returncode == 0
    assert b"2 given back" in err
    for pid in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    counts = await cli.counts("work")
    assert (counts["ready"], counts["leased"], counts["released"]) == (3, 0, 2)
    attempts = {one["attempt"] for one in await cli.lines("peek", "work")}
    assert attempts == {0}


async def test_a_slow_input_is_passed_on_at_once_and_ctrl_c_ends_it(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "produce", "mail", "--address", cli.address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    await process.stdin.drain()
    (leased,) = await cli.lines("lease", "mail", "--wait", "20s")
    assert leased["item"]["payload"] == "first"
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130


async def test_stats_of_all_queues(cli: Cli) -> None:
    await cli.ok("queue", "create", "a")
    await cli.ok("queue", "create", "b", "--partitions", "3")
    await cli.ok("produce", "b", "x", "y")
    a, b = await cli.lines("stats")
    assert (a["queue"], a["total"]["ready"], a["durable"]) == ("a", 0, True)
    assert (b["queue"], b["total"]["ready"], len(b["partitions"])) == ("b", 2, 3)
    assert "partition 2" in await cli.ok("stats", "b", "--partitions")


async def test_the_status_is_watched_until_ctrl_c(cli: Cli) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "cluster", "status", "--address", cli.address,
        "--watch", "--interval", "100ms", "--output", "json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    await cli.ok("queue", "create", "work")
    view: dict[str, Any] = {"partitions": []}
    while "work" not in {one["queue"] for one in view["partitions"]}:
        view = msgspec.json.decode(await process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_bench_balances_its_counts(cli: Cli) -> None:
    (view,) = await cli.lines("bench", "--items", "2000", "--size", "100", "--batch", "50")
    assert view["problems"] == []
    assert view["ack"]["count"] == 40
    assert view["delivery"]["count"] >= 2_000
    (view,) = await cli.lines("bench", "--items", "300", "--rate", "5000", "--consumers", "0")
    assert (view["problems"], view["delivery"]) == ([], None)
    assert await cli.lines("queue", "list") == [[]]


@pytest.mark.parametrize("path", [(), ("queue",), ("dead",)])
async def test_no_command_shows_the_help(path: tuple[str, ...]) -> None:
    code, out, err = await run(*path)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: querator")
    assert "Commands:" in err
    assert "Error" not in err


async def test_nobody_at_the_address() -> None:
    code, line = await Cli("127.0.0.1:1").refused("queue", "list")
    assert (code, line) == (4, "Error: Connection refused at 127.0.0.1:1.\n")


async def test_verify_finds_damage_and_refuses_what_is_in_use(
    node: ServerProcess, cli: Cli, tmp_path: Path
) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "2")
    lines = b"".join(b"the payload of item %d\n" % n for n in range(400))
    await cli.ok("produce", "mail", stdin=lines)
    directory = ("verify", "--data-dir", str(node.data_dir))
    code, _, err = await run(*directory)
    assert (code, "in use" in err) == (3, True)
    assert await node.terminate() == 0
    code, out, _ = await run(*directory, "--output", "json")
    view = msgspec.json.decode(out)
    assert (code, view["problems"], view["items"], view["queues"]) == (0, [], 400, 1)
    places = [one["place"] for one in view["digests"]]
    assert places == ["placement", "default/mail partition 0", "default/mail partition 1"]
    assert all(len(one["digest"]) == 32 and one["applied_index"] for one in view["digests"])
    file = node.data_dir / "data.mdb"
    data = file.read_bytes()
    assert b"the payload of item 123" in data
    file.write_bytes(data.replace(b"the payload of item 123", b"the payload of item 124"))
    code, out, _ = await run(*directory)
    assert code == 1
    assert "checksum" in out
    code, _, err = await run("verify", "--data-dir", str(tmp_path / "none"))
    assert (code, "no data" in err) == (2, True)
    assert not (tmp_path / "none").exists()
