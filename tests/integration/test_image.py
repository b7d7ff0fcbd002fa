"""The content of the image, run as in a container: by a user without rights, in a read-only root
without a checkout. A container runtime makes the image itself from it, and is not needed here.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.pods import START_S, Room, python_home

pytestmark = pytest.mark.timeout(300)

USER = 65532
DATA = "/var/lib/querator"


@pytest.fixture
def in_container(tmp_path: Path, image: Path) -> Iterator[Callable[..., list[str]]]:
    """Returns a function that runs a command in the container."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    room = Room(
        "image",
        tmp_path,
        mounts=[(volume, DATA, True), (image, str(image), False)],
        reachable=[image, python_home()],
    )

    def command(*words: str) -> list[str]:
        environment = {"PATH": f"{image}/bin:/usr/bin:/bin"}
        return room.command(words, environment=environment, user=USER, group=USER)

    yield command
    room.close()


def said(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=START_S
    ).stdout


def test_a_user_without_rights_serves_from_a_tree_that_is_read_only(
    in_container: Callable[..., list[str]], image: Path
):
    where = said(in_container("python", "-c", "import querator as q; print(q.__file__)")).strip()
    assert Path(where).is_relative_to(image)
    assert said(in_container("id", "-u")).strip() == str(USER)
    for path in (where, str(image / "new"), "/tmp/new"):
        assert subprocess.run(
            in_container("touch", path), check=False, capture_output=True
        ).returncode
    serve = in_container("querator", "serve", "--new", "--data-dir", f"{DATA}/data")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("querator ready")
            said(in_container("querator", "queue", "create", "mail"))
            said(in_container("querator", "produce", "mail", "hello"))
            assert "hello" in said(in_container("querator", "lease", "mail", "--wait", "10s"))
            node.terminate()
            assert node.wait(START_S) == 0
        finally:
            node.kill()
