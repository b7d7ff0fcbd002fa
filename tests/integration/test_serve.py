"""`querator serve` as a process: how it starts, how it refuses to, and how it ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import grpc
import msgspec
import pytest

from querator.v1 import admin_service_pb2 as admin
from querator.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.integration.processes import server


async def test_start_and_sigterm(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with grpc.aio.insecure_channel(node.address) as channel:
            await AdminServiceStub(channel).CreateQueue(admin.CreateQueueRequest(queue="q"))
        assert await node.terminate() == 0
        said = node.log.read_text()
        assert f"querator {version('querator')} on {node.address}" in said
        assert str((tmp_path / "data").resolve()) in said
        assert '"event":"node.stopped"' in said

        await node.start()
        async with grpc.aio.insecure_channel(node.address) as channel:
            got = await AdminServiceStub(channel).GetQueue(admin.GetQueueRequest(queue="q"))
        assert got.queue.state == admin.QUEUE_STATE_ACTIVE
        assert await node.terminate() == 0


def test_ctrl_c_ends_it_politely():
    command = [sys.executable, "-m", "querator", "serve", "--memory", "--listen", "127.0.0.1:0"]
    command += ["--listen-admin", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"querator ready address=127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert b"NOT DURABLE" in process.stderr.read()


def serve(*options: str, **environment: str) -> tuple[int, str]:
    """Runs a server that does not start. Returns the exit code and its one line on standard
    error.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "querator", "serve", *options],
        env={**os.environ, "QUERATOR_LISTEN_ADMIN": "127.0.0.1:0", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == ""
    assert ended.stderr.startswith("Error: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.returncode, ended.stderr


async def test_a_second_process_on_the_directory(tmp_path: Path):
    async with server(tmp_path / "data") as first:
        code, line = serve("--data-dir", str(first.data_dir), "--listen", "127.0.0.1:0")
        assert (code, line) == (
            1, f"Error: {first.data_dir} is in use by a running node (pid {first.pid})\n"
        )  # fmt: skip
        # The ports are in use as well, by the same node.
        ports = ("--listen", first.address, "--listen-admin", first.admin_address)
        code, line = serve("--data-dir", str(first.data_dir), *ports)
        assert "is in use by a running node" in line


def test_a_port_in_use(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = serve("--memory", "--listen", listen)
    assert code == 1
    assert listen in line


def test_a_directory_that_is_missing_or_somebody_elses(tmp_path: Path):
    code, line = serve("--data-dir", str(tmp_path / "dta"))
    assert code == 1
    assert "--new" in line
    assert not (tmp_path / "dta").exists()
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        code, line = serve("--data-dir", str(path), "--new")
        assert code == 1
        assert str(path) in line


def test_a_data_file_that_is_none(tmp_path: Path):
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    code, line = serve("--data-dir", str(tmp_path))
    assert code == 1
    assert "data.mdb" in line


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_with_json_logs_all_of_standard_error_is_json(source: str, tmp_path: Path):
    file = tmp_path / "querator.toml"
    file.write_text('log_format = "json"\n')
    options, environment = {
        "flag": (["--log-format", "json"], {}),
        "environment": ([], {"QUERATOR_LOG_FORMAT": "json"}),
        "file": (["--config", str(file)], {}),
    }[source]
    for more, code, words in (
        (["--data-dir", str(tmp_path / "no")], 1, "add --new"),
        (["--data-dir", "x", "--memory"], 2, "exclude each other"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "querator", "serve", *options, *more],
            env={**os.environ, "QUERATOR_LISTEN_ADMIN": "", **environment},
            capture_output=True,
            timeout=60,
            check=False,
        )
        lines = [msgspec.json.decode(line) for line in ended.stderr.splitlines()]
        assert lines[-1]["event"] == "serve.ended"
        assert lines[-1]["level"] == "critical"
        assert lines[-1]["exit_code"] == ended.returncode == code
        assert words in lines[-1]["reason"]


async def test_with_json_logs_a_whole_life_is_json():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "serve", "--memory", "--listen", "127.0.0.1:0",
        "--listen-admin", "", "--log-format", "json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    lines = [msgspec.json.decode(line) for line in err.splitlines()]
    [ready] = [line for line in lines if line["event"] == "serve.ready"]
    assert "NOT DURABLE" in ready["storage"]
    [settings] = [line for line in lines if line["event"] == "serve.settings"]
    assert settings["memory"] is True
    assert (settings["listen"], settings["log_format"]) == ("127.0.0.1:0", "json")
    assert "log_level" not in settings, "it has its default"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--data-dir"),
        (["--memory", "--data-dir", "x"], "exclude each other"),
        (["--memory", "--listen", "0.0.0.0:0"], "--insecure"),
        (["--memory", "--listen", "here"], "HOST:PORT"),
        (["--memory", "--log-level", "loud"], "one of debug, info, warning, error"),
        (["--memory", "--lisen", "127.0.0.1:0"], "--listen"),
    ],
)
def test_wrong_settings(options: list[str], words: str):
    code, line = serve(*options)
    assert code == 2
    assert words in line


def test_wrong_files(tmp_path: Path):
    file = tmp_path / "querator.toml"
    file.write_text("memory = perhaps\n")
    code, line = serve("--config", str(file))
    assert code == 2
    assert "not TOML" in line
    assert "line 1" in line
    file.write_text("datadir = 'x'\n")
    code, line = serve(QUERATOR_CONFIG=str(file))
    assert code == 2
    assert "did you mean data_dir?" in line
