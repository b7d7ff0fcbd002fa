"""Changes of Python files below a folder, for `--reload`.

watchfiles, which an extra installs, watches the files by the means of the operating system.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def watching(folder: Path, changed: Callable[[list[str]], None]) -> Iterator[None]:
    """Within the block, calls `changed` with the paths of Python files that were added, changed or
    deleted: once for all changes of a moment, on a thread. Folders such as `.venv`, `.git` and
    `__pycache__` do not count. Raises ModuleNotFoundError without watchfiles.
    """
    from watchfiles import PythonFilter, watch

    ended = threading.Event()

    def follow() -> None:
        changes = watch(
            folder,
            watch_filter=PythonFilter(),
            stop_event=ended,
            debounce=400,
            rust_timeout=200,
            yield_on_timeout=False,
            raise_interrupt=False,
        )
        for paths in changes:
            changed(sorted(path for _, path in paths))

    thread = threading.Thread(target=follow, name="querator-changes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
