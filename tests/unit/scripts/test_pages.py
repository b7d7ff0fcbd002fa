"""The pages for operators name only existing metrics, log lines, options, and pages."""

import re
from pathlib import Path

import pytest

from querator.config import SETTINGS
from querator.model.errors import ErrorCode
from querator.server.admin.metric_catalogue import METRICS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = ("operating.md", "cluster.md", "kubernetes.md", "guides/machines.md")
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "querator").rglob("*.py")))


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return (DOCS / name).read_text()


def test_metrics(page: str):
    named = {name.removesuffix("_bucket") for name in re.findall(r"`(querator_\w+)", page)}
    assert named <= {metric.name for metric in METRICS}


def test_log_lines(page: str):
    rooms = "peers|node|snapshot|clock|formation|grpc|links|placement"
    for event in re.findall(rf"`((?:{rooms})\.[a-z_]+)`", page):
        assert f'"{event}"' in SOURCE, event


def test_options_of_a_node(page: str):
    known = {setting.flag for setting in SETTINGS}
    for line in re.findall(r"querator serve((?:.*\\\n)*.*)", page):
        for flag in re.findall(r"--[a-z][a-z-]+", line.partition("#")[0]):
            assert flag in known, flag


def test_error_codes():
    page = (DOCS / "operating.md").read_text()
    codes = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", page))
    assert {"STORAGE_FULL", "LEASE_LOST"} <= codes
    others = {"GRPC_VERBOSITY", "QUERATOR_MEMORY", "PEER_DID_NOT_RETURN_A_CERTIFICATE"}
    assert codes <= {code.name for code in ErrorCode} | others


def anchors(path: Path) -> set[str]:
    """Anchors of the headings, as the usual viewers make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", path.read_text())
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target
