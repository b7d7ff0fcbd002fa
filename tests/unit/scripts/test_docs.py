"""The pages of docs/ agree with the code."""

import re

from querator.model.errors import ERRORS
from querator.server.admin.metric_catalogue import METRICS
from scripts import docs, grpc_reference


def test_tables_from_the_code_are_in_the_docs() -> None:
    for (path, name), table in docs.TABLES.items():
        text = path.read_text()
        assert docs.filled(text, name, table()) == text, "run: python -m scripts.docs"


def test_every_error_code_is_documented() -> None:
    text = docs.API.read_text()
    assert all(f"| `{code.name}` | {code.value} |" in text for code in ERRORS)


def test_a_stale_table_is_noticed() -> None:
    text = docs.API.read_text().replace("| `LEASE_LOST` | 8 |", "| `LEASE_LOST` | 9 |")
    assert docs.filled(text, "errors", docs.errors_table()) != text


def test_queries_and_alerts_in_the_docs_name_metrics_that_there_are() -> None:
    told = docs.METRICS_PAGE.read_text().partition("## All metrics")[0]
    named = {name.removesuffix("_bucket") for name in re.findall(r"querator_[a-z_]+", told)}
    assert len(named) > 10
    assert named <= {spec.name for spec in METRICS}


def test_every_service_for_clients_is_in_the_reference() -> None:
    names = {path.stem for path in (grpc_reference.PROTO / "querator/v1").glob("*.proto")}
    assert names - {*grpc_reference.FILES} == {"node_service"}
