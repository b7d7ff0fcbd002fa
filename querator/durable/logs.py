"""What the package logs itself, by the standard library, as the rest of the SDK does."""

import functools
import logging

LOG = logging.getLogger("querator.durable")  # noqa: TID251 - the program's own logging

WORKER = logging.getLogger("querator.durable.worker")  # noqa: TID251 - the program's own logging
"""`Worker`: executions that are stuck, leases that are lost, nodes that do not answer."""


@functools.lru_cache(maxsize=1_024)
def tell_once(function: str, place: str) -> None:
    """Says that code does not let its execution leave the memory; once for each place."""
    LOG.warning(
        "%s catches BaseException around the durable call at %s, and continues: an execution that "
        "leaves the memory raises Evicted there, which must end the code",
        function,
        place,
    )


@functools.lru_cache(maxsize=1_024)
def tell_finding(finding: str) -> None:
    """Says once what lint has found."""
    WORKER.warning("%s", finding)
