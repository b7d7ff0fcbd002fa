"""An installation without extras: programs and commands that need a server work against one, and
whatever needs an extra says how to install it.
"""

import asyncio
import re
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from querator import Client, Node
from querator.extras import MODULES
from tests.clients.programs import HERE
from tests.clients.slim import make_slim_environment

COMMANDS = """
import click
from querator.cli import querator
from querator.extras import MissingExtra

def walk(group, path):
    context = click.Context(group, info_name=path[-1], parent=None)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        try:
            command.main(["--help"], prog_name=" ".join((*path, name)), standalone_mode=False)
        except MissingExtra as missing:
            print("REFUSED", *path[1:], name, missing.extra)
        if isinstance(command, click.Group):
            walk(command, (*path, name))

walk(querator, ("querator",))
"""
LOADED = """
import sys
before = set(sys.modules)
from querator import Client, Item, SyncClient, Tls, errors
Client, Item, SyncClient, Tls, errors.LeaseLost
loaded = set(sys.modules) - before
print(*sorted({name.partition(".")[0] for name in loaded} - sys.stdlib_module_names))
print(*sorted({"importlib.metadata", "multiprocessing", "unittest"} & loaded))
"""
LINE = re.compile(
    r"Error: (.+) needs querator\[(server|spark|reload)\] \((\w+) is not installed\): "
    r"uv pip install --python (\S+) 'querator\[\2\]'\n"
)


@pytest.fixture(scope="session")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the packages of a client alone."""
    return make_slim_environment(tmp_path_factory.mktemp("slim"))


async def run(
    python: Path, *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *map(str, (python, *arguments)),
        # Nothing of this environment and of the checkout.
        cwd=cwd or python.parent,
        env={"PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_no_module_of_an_extra_is_there(slim: Path):
    names = [module for modules in MODULES.values() for module in modules]
    program = (
        "import sys; from importlib.util import find_spec; "
        "print([name for name in sys.argv[1:] if find_spec(name)])"
    )
    assert await run(slim, "-c", program, *names) == (0, "[]\n", "")


@pytest.mark.parametrize("program", ["fifteen_lines.py", "without_a_loop.py"])
async def test_programs_produce_and_consume(slim: Path, node: Node, program: str):
    code, out, err = await run(slim, HERE / program, node.address)
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines()] == ["hello", "bonjour", "merhaba"]
    async with Client(node.address) as client:
        assert (await client.stats("greetings")).total.completed == 3


async def test_the_command_line_produces_and_consumes(slim: Path, node: Node):
    async def querator(*arguments: str, stdin: bytes = b"") -> str:
        code, out, err = await run(
            slim, "-m", "querator", *arguments, "--address", node.address, stdin=stdin
        )
        assert code == 0, err
        return out

    await querator("queue", "create", "mail")
    await querator("produce", "mail", stdin=b"hello\nbonjour\n")
    assert "hello" in await querator("peek", "mail")
    [leased] = msgspec.json.decode(
        b"[%s]" % (await querator("lease", "mail", "--output", "json")).strip().encode()
    )
    assert leased
    assert "mail" in await querator("stats", "mail")
    await querator("cluster", "status")
    await querator("bench", "--items", "100")


async def test_a_worker_handles_items_and_has_metrics(slim: Path, node: Node, tmp_path: Path):
    (tmp_path / "tasks.py").write_text("def handle(item): print(item.text())\n")
    async with Client(node.address) as client:
        await client.create_queue("mail")
        await client.produce("mail", b"hello")
    arguments = ("--queue", "mail", "--until-empty", "--metrics-port", "0", "--processes", "2")
    code, out, err = await run(
        slim,
        *("-m", "querator", "worker", "tasks:handle", *arguments, "--address", node.address),
        cwd=tmp_path,
    )
    assert (code, out) == (0, "hello\n"), err


async def test_help_of_every_command(slim: Path):
    code, out, err = await run(slim, "-c", COMMANDS)
    assert (code, err) == (0, "")
    refused = [line for line in out.splitlines() if line.startswith("REFUSED")]
    assert refused == ["REFUSED serve server", "REFUSED verify server"]
    code, out, err = await run(slim, "-m", "querator", "--help")
    assert (code, err) == (0, "")
    assert re.search(r"serve +Needs querator\[server\], which is not installed\.", out)


@pytest.mark.parametrize(
    ("arguments", "what", "extra"),
    [
        (["serve", "--data-dir", "./data", "--new"], "querator serve", "server"),
        (["serve", "--help"], "querator serve", "server"),
        (["verify", "./data"], "querator verify", "server"),
        (["demo"], "querator demo", "server"),
        (
            ["node", "restore-from-copy", "--data-dir", "./data"],
            "querator node restore-from-copy",
            "server",
        ),
        (["worker", "tasks:handle", "--queue", "mail", "--reload"], "--reload", "reload"),
        (["spark", "demo"], "querator.spark", "spark"),
        (["spark", "stats", "mail"], "querator.spark", "spark"),
    ],
)
async def test_a_command_says_which_extra_it_needs(
    slim: Path, arguments: list[str], what: str, extra: str
):
    code, out, err = await run(slim, "-m", "querator", *arguments)
    assert (code, out) == (1, "")
    line = LINE.fullmatch(err)
    assert line is not None, err
    assert (line[1], line[2], line[4]) == (what, extra, str(slim))
    assert line[3] in MODULES[line[2]]  # type: ignore[index]


async def test_an_embedded_node_says_which_extra_it_needs(slim: Path):
    program = (
        "import querator\n"
        "from querator.errors import MissingExtra\n"
        "try:\n"
        "    querator.Node('./data', new=True)\n"
        "except MissingExtra as missing:\n"
        "    print(f'Error: {missing}')\n"
    )
    code, out, err = await run(slim, "-c", program)
    assert (code, err) == (0, "")
    line = LINE.fullmatch(out)
    assert line is not None, out
    assert (line[1], line[2]) == ("querator.Node", "server")


async def test_the_sdk_loads_few_libraries(slim: Path):
    code, out, err = await run(slim, "-c", LOADED)
    assert (code, err) == (0, "")
    libraries, slow = out.split("\n")[:2]
    assert [name for name in libraries.split() if "cython" not in name] == [
        "google", "grpc", "msgspec", "querator", "typing_extensions", "uuid_utils",
    ]  # fmt: skip
    assert slow == ""


async def test_a_strict_program_finds_all_types(slim: Path, tmp_path: Path):
    # Outside the checkout, whose sources and settings mypy would take.
    program = shutil.copy(HERE / "typed_program.py", tmp_path)
    code, out, err = await run(
        Path(sys.executable),
        *("-m", "mypy", "--strict", "--python-executable", slim, program),
        cwd=tmp_path,
    )
    assert (code, err) == (0, ""), out
