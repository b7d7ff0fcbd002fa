"""cluster/prometheus: the files are those of docs/metrics.md, and ask for metrics that exist."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from querator.server.admin.metric_catalogue import METRICS

ROOT = Path(__file__).parents[3]
FILES = ROOT / "cluster" / "prometheus"
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
SPECS = {spec.name: spec for spec in METRICS}
SCRAPED_LABELS = {"instance", "job", "le"}
RULES = [
    rule
    for group in yaml.safe_load((FILES / "querator.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = msgspec.json.decode((FILES / "dashboard.json").read_bytes())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(
        pytest.param(target["expr"], id=panel["title"])
        for panel in PANELS
        for target in panel["targets"]
    ),
]


@pytest.mark.parametrize("name", ["prometheus.yml", "querator.rules.yml", "alertmanager.yml"])
def test_the_page_shows_the_file(name: str) -> None:
    text = (FILES / name).read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert f"```yaml\n{text}```\n" in PAGE


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_ask_for_metrics_and_labels_that_exist(expression: str) -> None:
    names = re.findall(r"\bquerator_\w+", expression)
    assert names or "up{" in expression or "process_" in expression
    known = set(SCRAPED_LABELS)
    for name in names:
        spec = SPECS.get(name) or SPECS[name.removesuffix("_bucket")]
        assert name == spec.name or spec.kind == "histogram"
        known |= set(spec.labels)
        for selected in re.findall(rf"\b{name}{{([^}}]*)}}", expression):
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", selected))
            assert labels <= {*spec.labels, *SCRAPED_LABELS}
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= known


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_each_alert_has_a_severity_and_says_where_to_look(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["description"]


def test_inhibitions_name_alerts_that_exist() -> None:
    text = (FILES / "alertmanager.yml").read_text()
    named = set(re.findall(r"\bQuerator\w+", text))
    assert len(named) > 1
    assert named <= {rule["alert"] for rule in RULES}


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
