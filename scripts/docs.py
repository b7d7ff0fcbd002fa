"""Tables and lists in docs/ that come from the code.

`python -m scripts.docs` writes them, and `--check` compares them. A table stands between
`<!-- NAME: … -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from querator.client.errors import make_error
from querator.model.errors import ERRORS
from querator.partition.states import table_markdown
from querator.server.admin.metric_catalogue import METRICS
from scripts import behaviours, grpc_reference, limits_list

DOCS = Path("docs")
API = DOCS / "api.md"
METRICS_PAGE = DOCS / "metrics.md"
ERRORS_PAGE = DOCS / "reference/errors.md"
LIMITS_PAGE = DOCS / "reference/limits.md"
GRPC_PAGE = DOCS / "reference/grpc.md"
BEHAVIOURS_PAGE = DOCS / "reference/behaviours.md"
VERIFICATION = DOCS / "verification.md"
DECISIONS = DOCS / "adr/README.md"


def errors_table() -> str:
    lines = ["| code | number | gRPC status | retry | meaning |", "|---|---|---|---|---|"]
    for code, spec in ERRORS.items():
        retry = "yes" if spec.retriable else "no"
        lines.append(
            f"| `{code.name}` | {code.value} | {spec.grpc_status} | {retry} | {spec.meaning} |"
        )
    return "\n".join(lines) + "\n"


def exceptions_table() -> str:
    lines = ["| code | exception of the SDK | repeated | meaning |", "|---|---|---|---|"]
    for code, spec in ERRORS.items():
        repeated = "yes" if spec.retriable else "no"
        name = type(make_error(code, "")).__name__
        lines.append(f"| `{code.name}` | `{name}` | {repeated} | {spec.meaning} |")
    return "\n".join(lines) + "\n"


def decisions_list() -> str:
    """Links to the decisions, the newest first, by the headings of their pages."""
    lines = []
    for path in sorted(DECISIONS.parent.glob("0*.md"), reverse=True):
        heading = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{heading}]({path.name})")
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
    (ERRORS_PAGE, "exceptions"): exceptions_table,
    (LIMITS_PAGE, "limits"): limits_list.markdown,
    (GRPC_PAGE, "grpc"): grpc_reference.markdown,
    (VERIFICATION, "behaviours"): behaviours.counts_table,
    (BEHAVIOURS_PAGE, "behaviours"): behaviours.names_list,
    (DECISIONS, "decisions"): decisions_list,
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
