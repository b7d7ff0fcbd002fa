"""The page about machines: its commands make certificates with which its settings start a
cluster.
"""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

from querator.cli.demo.local_nodes import free_ports
from tests.integration.processes import ServerProcess, run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "machines.md"


def block(name: str) -> str:
    """The code of the page behind the mark `test: NAME`."""
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1]


class Machines:
    """Three machines on loopback: addresses 127.0.0.1 to 127.0.0.3, and directories for /etc and
    /var/lib.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._ports = dict(zip(("4470", "4471", "4472"), free_ports(3), strict=True))

    def here(self, text: str) -> str:
        text = text.replace("10.0.0.", "127.0.0.")
        return re.sub(r"(?<=:)447[012]\b", lambda port: str(self._ports[port[0]]), text)

    async def shell(self, commands: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", commands,
            cwd=self.home,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    def settings(self, number: int) -> Path:
        """Puts the files of a node into place; returns its file of settings."""
        etc = self.home / f"etc-{number}"
        etc.mkdir()
        for source, name in (
            (f"n{number}.pem", "node.pem"), (f"n{number}.key", "node.key"),
            (f"n{number}-peer.pem", "peer.pem"), (f"n{number}-peer.key", "peer.key"),
            ("clients-ca.pem", "clients-ca.pem"), ("nodes-ca.pem", "nodes-ca.pem"),
            ("token", "token"),
        ):  # fmt: skip
            shutil.copy(self.home / source, etc / name)
        text = block("settings")
        own = ("name =", "listen =", "listen_admin =")
        lines = [
            line.replace('"n1"', f'"n{number}"').replace('"10.0.0.1:', f'"10.0.0.{number}:')
            if line.startswith(own)
            else line
            for line in text.splitlines()
        ]
        text = self.here("\n".join(lines))
        text = text.replace("/etc/querator", str(etc))
        text = text.replace("/var/lib/querator", str(self.home / f"lib-{number}"))
        file = etc / "querator.toml"
        file.write_text(text)
        return file


def test_the_file_of_settings_is_that_of_the_page():
    assert (ROOT / "cluster" / "systemd" / "querator.toml").read_text() == block("settings")


async def test_the_page_starts_a_cluster(tmp_path: Path):
    machines = Machines(tmp_path)
    await machines.shell(machines.here(block("certificates")))
    nodes = [ConfiguredNode(machines.settings(number)) for number in (1, 2, 3)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(node.start())
        told = await machines.shell(machines.here(block("check")))
        assert "All is well" in told
        assert re.search(r"\nmail +1 ", told), told
        code, _, err = await run("stats", "--address", nodes[0].address)
        assert code == 4
        assert "requires TLS" in err
        for node in nodes:
            assert await node.terminate() == 0
    finally:
        for node in nodes:
            if node.running:
                await node.kill()


class ConfiguredNode(ServerProcess):
    """A node that has nothing but its file of settings."""

    def __init__(self, file: Path) -> None:
        super().__init__(file.parent / "unused")
        self._file = file

    def command(self) -> list[str]:
        return ["serve", "--config", str(self._file)]
