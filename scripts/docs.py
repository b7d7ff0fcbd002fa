"""Tables in docs/ that come from the code: `python -m scripts.docs` writes them, `--check`
compares.

A table stands between `<!-- NAME: … -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from querator.model.errors import ERRORS
from querator.partition.states import table_markdown
from querator.server.admin.metric_catalogue import METRICS

API = Path("docs/api.md")
METRICS_PAGE = Path("docs/metrics.md")


def errors_table() -> str:
    lines = ["| code | number | gRPC status | retry | meaning |", "|---|---|---|---|---|"]
    for code, spec in ERRORS.items():
        retry = "yes" if spec.retriable else "no"
        lines.append(
            f"| `{code.name}` | {code.value} | {spec.grpc_status} | {retry} | {spec.meaning} |"
        )
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for spec in METRICS:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        lines.append(f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |")
    return "\n".join(lines) + "\n"


TABLES: dict[tuple[Path, str], Callable[[], str]] = {
    (API, "errors"): errors_table,
    (API, "states"): table_markdown,
    (METRICS_PAGE, "metrics"): metrics_table,
}


def filled(text: str, name: str, table: str) -> str:
    marker = re.compile(rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)
    text, found = marker.subn(lambda match: f"{match[1]}\n{table}\n{match[2]}", text)
    if found != 1:
        raise SystemExit(f"{found} places for the table {name!r}; there must be one")
    return text


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for (path, name), table in TABLES.items():
        before = path.read_text()
        after = filled(before, name, table())
        if check and before != after:
            stale.append(f"{path}: the table {name!r} is not what the code says")
        elif not check:
            path.write_text(after)
    if stale:
        raise SystemExit("\n".join([*stale, "run: python -m scripts.docs"]))


if __name__ == "__main__":
    main()
