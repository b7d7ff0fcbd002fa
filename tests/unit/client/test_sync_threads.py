"""A `SyncClient` where greenlets have taken the place of threads."""

import sys
from types import SimpleNamespace

import pytest

from querator import SyncClient


@pytest.mark.parametrize(
    ("library", "module", "asked", "part"),
    [
        ("gevent", "gevent.monkey", "is_module_patched", "threading"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched", "thread"),
    ],
)
def test_greenlets_are_no_threads(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, asked: str, part: str
) -> None:
    patched = {part}
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: patched.__contains__}))
    with (
        SyncClient("127.0.0.1:1") as client,
        pytest.raises(RuntimeError, match=f"^{library} has replaced the threads"),
    ):
        client.produce("q", b"x")
    patched.clear()
    with SyncClient("127.0.0.1:1") as client, pytest.raises(Exception, match="refused"):
        client.produce("q", b"x")
