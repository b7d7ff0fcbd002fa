"""Options of writes."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from querator.model.limits import TXN_NUMBER_MAX, TXN_PRODUCER_CHARS_MAX
from querator.spark.options import (
    OptionError,
    Target,
    named,
    required,
    retry_seconds,
    target,
)

Guarantee = Literal["transactional", "idempotent", "atLeastOnce"]
OVERSIZE_POLICIES: Final = ("fail", "skip")
GUARANTEES: Final[tuple[Guarantee, ...]] = ("transactional", "idempotent", "atLeastOnce")
_OF_SINKS: Final = (
    "endpoint",
    "namespace",
    "queue",
    "guarantee",
    "dedupeKeyColumn",
    "txnAppId",
    "txnVersion",
    "oversizePolicy",
    "retryTimeout",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
)
_OF_SPARK: Final = frozenset(("checkpointlocation", "queryname"))
"""Spark's own options, which a streaming query hands over to its sink."""


class SinkOptions(msgspec.Struct, frozen=True):
    """`producer` and `batch` are the user's names for the write, or "" and None if not given.
    `dedupe_key` is a column. `skips_oversized`: rows whose payload is too large are left out.
    `retry_seconds` is how long one request may be tried.
    """

    target: Target
    namespace: str
    queue: str
    guarantee: Guarantee
    dedupe_key: str
    producer: str
    batch: int | None
    skips_oversized: bool
    retry_seconds: float

    @property
    def transactional(self) -> bool:
        return self.guarantee == "transactional"


def sink_options(given: Mapping[str, str], *, of_table: Mapping[str, str]) -> SinkOptions:
    """`of_table`: options of the table that is inserted into, which may be options of reads. Raises
    OptionError.
    """
    said = named({key: value for key, value in given.items() if key.lower() not in _OF_SPARK})
    for name in said:
        if name not in _OF_SINKS:
            raise OptionError(
                f"option {name} is for reads only: leave it out; writes have {', '.join(_OF_SINKS)}"
            )
    options = {**named(of_table), **said}
    guarantee = _guarantee(options)
    producer = options.get("txnAppId", "")
    if len(producer) > TXN_PRODUCER_CHARS_MAX:
        raise OptionError(
            f"option txnAppId has {len(producer)} characters: at most {TXN_PRODUCER_CHARS_MAX}"
        )
    if "txnVersion" in options and not producer:
        raise OptionError(
            f"option txnVersion is {options['txnVersion']!r}, and txnAppId is missing: it is the "
            "number of a write of that application, so give both"
        )
    if producer and guarantee != "transactional":
        raise OptionError(
            f"option txnAppId is {producer!r}: it is for guarantee=transactional, and guarantee is "
            f"{guarantee}; leave txnAppId out"
        )
    return SinkOptions(
        target=target(options),
        namespace=options.get("namespace", ""),
        queue=required(options, "queue", "the name of the queue"),
        guarantee=guarantee,
        dedupe_key=options.get("dedupeKeyColumn", ""),
        producer=producer,
        batch=_batch(options),
        skips_oversized=_oversize_policy(options) == "skip",
        retry_seconds=retry_seconds(options),
    )


def _guarantee(options: Mapping[str, str]) -> Guarantee:
    said = options.get("guarantee", GUARANTEES[0])
    for name in GUARANTEES:
        if name.lower() == said.lower():
            return name
    raise OptionError(f"option guarantee is {said!r}: there are {', '.join(GUARANTEES)}")


def _oversize_policy(options: Mapping[str, str]) -> str:
    said = options.get("oversizePolicy", OVERSIZE_POLICIES[0]).lower()
    if said not in OVERSIZE_POLICIES:
        raise OptionError(
            f"option oversizePolicy is {said!r}: there are {', '.join(OVERSIZE_POLICIES)}"
        )
    return said


def _batch(options: Mapping[str, str]) -> int | None:
    value = options.get("txnVersion")
    if value is None:
        return None
    if not value.isdecimal() or int(value) > TXN_NUMBER_MAX:
        raise OptionError(
            f"option txnVersion is {value!r}: give a number from 0 to {TXN_NUMBER_MAX}, greater "
            "for each write of a txnAppId"
        )
    return int(value)
