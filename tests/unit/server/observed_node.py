"""The parts of a node that an admin port observes, for a node made of its packages."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from querator.server.admin.admin_view import Observed
from querator.server.calls.call_counts import CallCounts
from querator.storage.environment import ReadTransaction
from querator.storage.identity import FORMAT, Identity
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.service.service_node import ServiceNode

IDENTITY = Identity(FORMAT, cluster_id="c1", incarnation="i1", boots=1, name="n1")


def observed(node: ServiceNode) -> Observed:
    """Observed parts of a complete node that serves clients."""
    return Observed(
        began_ms=0,
        identity=IDENTITY,
        environment=node.environment,
        host=node.host,
        placement=node.placement,
        service=node.queues,
        calls=CallCounts(),
    )


class Exposition:
    """The parsed text of a scrape."""

    def __init__(self, text: str) -> None:
        self.families = {each.name: each for each in text_string_to_metric_families(text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for each in self.families.values()
            for sample in each.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Raises KeyError when the scrape does not have the sample."""
        return self._samples[name, frozenset(labels.items())]

    def buckets(self, name: str, **labels: str) -> list[tuple[float, float]]:
        """Pairs (edge, number of values up to it) of a histogram, by edge."""
        wanted = labels.items()
        return sorted(
            (float(dict(found)["le"]), value)
            for (sample, found), value in self._samples.items()
            if sample == f"{name}_bucket" and wanted <= dict(found).items()
        )

    def names(self) -> Iterable[str]:
        return self.families.keys()


class HeldEnvironment(MemoryEnvironment):
    """Blocks threads that take a snapshot while `passing` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.passing = threading.Event()
        self.passing.set()

    @contextmanager
    def snapshot(self) -> Iterator[ReadTransaction]:
        with super().snapshot() as txn:
            if not self.passing.is_set():
                self.reached.set()
                self.passing.wait()
            yield txn
