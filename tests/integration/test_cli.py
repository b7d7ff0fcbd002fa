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
    said = (await cli.ok(*create)).splitlines()
    assert said[0] == "Created queue mail."
    settings = dict(line.split(maxsplit=1) for line in said[1:] if not line.startswith("items"))
    assert (settings["partitions"], settings["replicas"].split(",")[0]) == ("2", "three")
    assert "lease timeout        30s" in said
    assert "dead queue           dead" in said
    assert (await cli.ok(*create)).splitlines()[0] == "Queue mail was there."
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
    (told,) = await cli.lines("dead", "redrive", "mail", letter["id"])
    assert told == {"redriven": 1, "dry_run": False}
    (back,) = await cli.lines("lease", "mail", "--wait", "10s")
    assert back["item"]["payload"] == "x"


async def test_a_dead_queue_is_emptied_and_keeps_its_settings(cli: Cli) -> None:
    await cli.ok("queue", "create", "dead", "--partitions", "2", "--lease-timeout", "7s")
    await cli.ok("queue", "create", "mail", "--dead-queue", "dead")
    await cli.ok("produce", "dead", "a", "b", "c")
    await cli.ok("produce", "dead", "later", "--delay", "1h")
    code, line = await cli.refused("queue", "delete", "dead", "--yes")
    assert (code, "QUEUE_IN_USE" in line) == (3, True)
    assert "to empty it: querator queue purge dead" in line
    await cli.ok("queue", "purge", "dead", "--yes")
    counts = await cli.counts("dead")
    assert (counts["ready"], counts["scheduled"], counts["leased"]) == (0, 0, 0)
    (info,) = await cli.lines("queue", "info", "dead")
    assert (info["partitions"], info["lease_timeout_ms"]) == (2, 7_000)


async def test_bad_lines_are_named_and_the_others_stored(cli: Cli, tmp_path: Path) -> None:
    await cli.ok("queue", "create", "mail")
    big = b"x" * (1 << 20) + b"y"
    code, out, err = await cli.raw("produce", "mail", stdin=b"good\n" + big + b"\nlast\n")
    assert code == 1
    assert "2 items" in out
    assert err.startswith("line 2: payload is 1,048,577 bytes; at most 1,048,576\n")
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


async def test_a_csv_comes_from_a_pipe_and_json_lines_from_files(cli: Cli, tmp_path: Path) -> None:
    await cli.ok("queue", "create", "mail")
    rows = b"id,name\n" + b"".join(b"%d,ann\n" % n for n in range(2_500))
    said = await cli.ok("produce", "mail", "--csv", "/dev/stdin", "--key-column", "id", stdin=rows)
    assert "2,500 items" in said
    file = tmp_path / "items.jsonl"
    file.write_text('{"payload": "a"}\n{}\n{}\n')
    options = ("--json-lines", "--file", str(file), "--file", "-")
    code, out, err = await cli.raw("produce", "mail", *options, stdin=b'{"payload": "b"}\n')
    assert (code, "2 items" in out) == (1, True)
    assert err.splitlines() == [
        f"{file}, line 2: payload is missing",
        "1 further line: payload is missing",
    ]
    code, line = await cli.refused("produce", "mail", "--json-lines", str(file))
    assert code == 2
    assert f"--json-lines --file {file}" in line


async def test_a_file_or_the_whole_input_is_one_item(cli: Cli, tmp_path: Path) -> None:
    await cli.ok("queue", "create", "mail")
    letter = tmp_path / "letter.eml"
    letter.write_bytes(b"To: ann\n\nHello.\n")
    said = await cli.ok(
        "produce", "mail", "--file", str(letter), "--file", "-", "--kind", "k",
        stdin=b"first\n\n\xff\x00",
    )  # fmt: skip
    assert len(said.split()) == 2
    items = [peeked["item"] for peeked in await cli.lines("peek", "mail")]
    assert {(item["payload"], item["payload_base64"], item["kind"]) for item in items} == {
        ("To: ann\n\nHello.\n", None, "k"),
        (None, "Zmlyc3QKCv8A", "k"),
    }
    once = ("produce", "mail", "--file", str(letter), "--dedup-key", "one", "--output", "json")
    counts = [(await cli.lines(*once[:-2]))[0]["duplicates"] for _ in range(2)]
    assert counts == [0, 1]
    letter.write_bytes(b"x" * (8 << 20) + b"y")
    code, out, err = await cli.raw("produce", "mail", "--file", str(letter))
    assert (code, out, err) == (1, "", f"{letter}: is larger than 8,388,608 bytes\n")
    code, line = await cli.refused("produce", "mail", "--file", str(tmp_path / "none"))
    assert (code, "none: No such file" in line) == (1, True)
    code, line = await cli.refused("produce", "mail", "--file", str(tmp_path))
    assert (code, "Is a directory" in line) == (1, True)


async def test_an_option_at_fault_ends_the_load_with_its_name(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail")
    code, line = await cli.refused("produce", "mail", "--kind", "k" * 256, stdin=b"a\n" * 5_000)
    assert code == 3
    assert line == "Error: --kind is 256 characters; at most 255 (LIMIT_EXCEEDED).\n"
    code, line = await cli.refused("produce", "mail", "--at", "2099-01-01T00:00:00Z", "x")
    assert code == 3
    assert line.startswith("Error: --at is ")
    assert line.endswith(" ahead; at most 10 years (LIMIT_EXCEEDED).\n")
    lines = b'{"payload": "x", "delay": "4000d"}\n{"payload": "y", "lease_timeout": "25h"}\n'
    code, _, err = await cli.raw("produce", "mail", "--json-lines", stdin=lines)
    assert code == 1
    assert err.splitlines() == [
        "line 1: delay is 4000d; at most 10 years",
        "line 2: lease_timeout is 25h; at most 24h",
    ]


async def test_printed_items_are_given_back_unless_they_are_completed(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "2")
    await cli.ok("produce", "mail", "one", "--kind", "k")
    await cli.ok("produce", "mail", "--file", "-", stdin=b"two\nlines")
    consume = ("consume", "mail", "--idle-exit", "500ms")
    code, out, err = await cli.raw(*consume)
    assert (code, sorted(out.splitlines())) == (0, ["lines", "one", "two"])
    assert err == "2 items printed and given back.\n"
    shown = await cli.lines(*consume)
    assert {(one["item"]["payload"], one["item"]["kind"]) for one in shown} == {
        ("one", "k"), ("two\nlines", ""),
    }  # fmt: skip
    counts = await cli.counts("mail")
    assert (counts["ready"], counts["leased"], counts["released"]) == (2, 0, 4)
    assert {peeked["attempt"] for peeked in await cli.lines("peek", "mail")} == {0}
    code, out, err = await cli.raw(*consume, "--complete", "--limit", "1")
    assert (code, err) == (0, "1 item printed, 1 completed.\n")
    code, out, err = await cli.raw(*consume, "--complete")
    assert (code, err) == (0, "1 item printed, 1 completed.\n")
    counts = await cli.counts("mail")
    assert (counts["ready"], counts["completed"]) == (0, 2)


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "hold"])
async def test_a_signal_ends_the_printing_of_items(cli: Cli, complete: bool) -> None:
    await cli.ok("queue", "create", "mail")
    await cli.ok("produce", "mail", "one", "two")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "consume", "mail", "--address", cli.address,
        *(["--complete"] if complete else []),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert [await process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    said = b"2 items printed, 2 completed.\n" if complete else b"2 items printed and given back.\n"
    assert (process.returncode, err) == (0, said)
    counts = await cli.counts("mail")
    assert (counts["ready"], counts["leased"]) == (0 if complete else 2, 0)


async def test_items_that_nothing_reads_are_given_back(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail")
    await cli.ok("produce", "mail", stdin=b"".join(b"%d\n" % n for n in range(1_000)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "consume", "mail", "--complete",
        "--address", cli.address,
        stdout=(write := _closed_pipe()),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    _, err = await process.communicate()
    assert (process.returncode, err) == (128 + signal.SIGPIPE, b"0 items printed, 0 completed.\n")
    counts = await cli.counts("mail")
    assert (counts["ready"], counts["leased"], counts["completed"]) == (1_000, 0, 0)


def _closed_pipe() -> int:
    """The end of a pipe to write to, which nothing reads."""
    read, write = os.pipe()
    os.close(read)
    return write


async def test_a_load_can_be_repeated(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "4")
    load = ("produce", "mail", "--dedup-prefix", "load-1")
    lines = b"".join(b"%d\n" % n for n in range(500))
    (first,) = await cli.lines(*load, stdin=lines)
    (second,) = await cli.lines(*load, stdin=lines)
    assert (first["produced"], first["duplicates"]) == (500, 0)
    assert (second["produced"], second["duplicates"]) == (0, 500)
    assert (await cli.counts("mail"))["ready"] == 500


async def test_items_with_the_same_content_are_stored_once(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "4")
    lines = b"".join(b"%d\n" % (n % 100) for n in range(500))
    for options in ((), ("--ordered",)):
        (told,) = await cli.lines("produce", "mail", "--dedup-content", *options, stdin=lines)
        assert told["produced"] + told["duplicates"] == 500
    assert (await cli.counts("mail"))["ready"] == 100
    (told,) = await cli.lines("produce", "mail", "--dedup-content", "--kind", "k", stdin=lines)
    assert (told["produced"], told["duplicates"]) == (100, 400)


async def test_an_ordered_load_keeps_its_order(cli: Cli) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "4")
    lines = b"".join(b"%d\n" % n for n in range(1_000))
    await cli.ok("produce", "mail", "--ordered", stdin=lines)
    leased = await cli.lines("lease", "mail", "--max-items", "1000", "--wait", "5s")
    assert [int(one["item"]["payload"]) for one in leased] == list(range(1_000))


async def test_items_out_of_attempts_are_no_retried_ones(cli: Cli) -> None:
    await cli.ok("queue", "create", "work", "--max-attempts", "1")
    await cli.ok("produce", "work", "a", "b")
    code, _, err = await cli.raw("consume", "work", "--exec", "exit 1", "--limit", "2")
    assert code == 0, err
    assert "0 completed, 0 retried, 0 rejected, 2 out of attempts: dead letters." in err


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
    a, b, _dead = await cli.lines("stats")
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
    assert code == 4
    assert line.startswith("Error: Connection refused at 127.0.0.1:1. Nothing listens there")


async def test_verify_finds_damage_and_refuses_what_is_in_use(
    node: ServerProcess, cli: Cli, tmp_path: Path
) -> None:
    await cli.ok("queue", "create", "mail", "--partitions", "2", "--dead-queue", "")
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


async def test_an_exported_queue_is_imported_once_however_often(cli: Cli, tmp_path: Path):
    path = str(tmp_path / "mail.jsonl")
    await cli.ok("queue", "create", "mail", "--partitions", "3")
    await cli.ok("queue", "create", "copy", "--partitions", "2")
    given = b"".join(b'{"payload": "%d", "key": "k%d"}\n' % (n, n) for n in range(250))
    await cli.ok("produce", "mail", "--json-lines", stdin=given)
    await cli.ok("produce", "mail", "--delay", "1h", "--attribute", "a=b", "later")
    await cli.ok("queue", "export", "mail", "--file", path)
    # Another one comes, and the file is continued.
    await cli.ok("produce", "mail", "--key", "k0", "last")
    await cli.ok("queue", "export", "mail", "--file", path)
    for _ in range(2):
        await cli.ok("produce", "copy", "--json-lines", "--file", path)
    counts = await cli.counts("copy")
    lines = (await asyncio.to_thread(Path(path).read_bytes)).splitlines()
    assert counts["ready"] + counts["scheduled"] == len(lines)
    assert counts["scheduled"] == 1
    assert counts["duplicates"] == counts["produced"]
