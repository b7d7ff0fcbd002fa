"""Hooks of the site, which `make docs` builds by mkdocs.yml.

- A link to a file of the repository outside of docs/ becomes the path of the file: the site has no
  copy of it.
- A page that was opened as a file searches in a hidden frame, because it may not start a worker.
- The site is refused if one of its pages or style sheets loads anything from elsewhere.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

_OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")
_CSS_ADDRESS: Final = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
_LOADING: Final = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that load what the attribute names, without a click of the reader."""

FRAME_WORKER: Final = "assets/frame-worker.js"


def on_config(config: Any) -> Any:
    """The name of the script contains what the offline plugin looks for; it then adds no other."""
    config.extra["polyfills"] = [f"{FRAME_WORKER}?iframe-worker"]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    docs = Path(config.docs_dir)
    return inside(markdown, (docs / page.file.src_uri).parent, docs)


def inside(markdown: str, folder: Path, docs: Path) -> str:
    """Replaces links to files outside of `docs`, which are relative to `folder`."""

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(docs.resolve()):
            return match[0]
        path = target.relative_to(docs.resolve().parent).as_posix()
        text = match[1]
        return f"`{path}`" if text.strip("`").endswith(path) else f"{text} (`{path}`)"

    return _OUTSIDE.sub(replaced, markdown)


def on_post_build(config: Any) -> None:
    found = list(loaded_from_elsewhere(Path(config.site_dir)))
    if found:
        raise SystemExit("\n".join(["The site loads what is not in it:", *found]))


def loaded_from_elsewhere(site: Path) -> Iterator[str]:
    """Yields `file: address` for everything that a page or a style sheet loads from a server."""
    for path in sorted(site.rglob("*.html")):
        page = _Loads()
        page.feed(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)}: {address}" for address in page.addresses)
    for path in sorted(site.rglob("*.css")):
        for match in _CSS_ADDRESS.finditer(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {match[1]}"


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(_LOADING.get(tag, "")) or ""
        if tag == "link" and values.get("rel") in ("canonical", "prev", "next"):
            return
        if address.startswith(("http://", "https://", "//")):
            self.addresses.append(address)
