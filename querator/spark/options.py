"""Options of the data source: their names and their allowed values.

Spark hands over names in lower case. An unknown option is an error: Spark would ignore it silently.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from querator.client.values import ItemState, split_addresses
from querator.model.limits import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    BATCH_ITEMS_DEFAULT,
    BATCH_ITEMS_MAX,
    READER_ID_BYTES_MAX,
)

_OF_ALL: Final = (
    "endpoint",
    "namespace",
    "queue",
    "includeValue",
    "minPartitions",
    "retryTimeout",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
)
_OF_BROWSE: Final = ("states", "kinds", "startingTimestamp", "endingTimestamp")
_OF_STREAMS: Final = (
    "readerId",
    "maxItemsPerTrigger",
    "maxBytesPerTrigger",
    "pollTimeout",
    "failOnDataLoss",
    "onCheckpointMismatch",
    "maxBatchReplays",
    "poisonPolicy",
)
_OF_WRITES: Final = ("guarantee", "dedupeKeyColumn", "txnAppId", "txnVersion", "oversizePolicy")
NAMES: Final = (*_OF_ALL, *_OF_BROWSE, *_OF_STREAMS, *_OF_WRITES)
_OF_TABLES: Final = frozenset(
    (
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "path",
        "provider",
        "serialization.format",
    )
)
"""Options that Spark's catalogue adds to a table's own."""
_OF_A_TABLE: Final = "option."
"""The prefix of a table's options, as the catalogue hands them over."""
RETRY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0
MIN_PARTITIONS_MAX: Final = 10_000
_YEAR_10000_US: Final = 253_402_300_800_000_000
"""The end of the range of the protocol's instants."""
BATCH_REPLAYS_MAX: Final = 1_000
_LISTS: Final = ("endpoint", "states", "kinds")
"""Options with several values."""
_LIST: Final = re.compile(r"""[\[({]['"].*['"],?[\])}]""", re.DOTALL)
"""A list, tuple or set of texts, as Python writes it."""
_NO_OFFSETS: Final = "a queue has no offsets: a stream takes what is there, and a scan shows it"
_OF_KAFKA: Final = {
    "startingOffsets": _NO_OFFSETS,
    "endingOffsets": _NO_OFFSETS,
    "startingOffsetsByTimestamp": _NO_OFFSETS,
    "endingOffsetsByTimestamp": _NO_OFFSETS,
    "maxOffsetsPerTrigger": "give maxItemsPerTrigger",
    "kafka.bootstrap.servers": "give endpoint",
    "subscribe": "give queue",
    "topic": "give queue",
}
"""Options of Spark's source of Kafka, and what stands in their place."""
_KAFKA_BY_LOWER: Final = {name.lower(): name for name in _OF_KAFKA}
_BY_LOWER: Final = {name.lower(): name for name in NAMES}
_TRUTH: Final = {"true": True, "false": False}
_STATES: Final = {state.name.lower(): state for state in ItemState}
_MISMATCHES: Final = ("fail", "adopt")
_POISON_POLICIES: Final = {"fail": False, "deadletter": True}


class OptionError(ValueError):
    """An option is missing, unknown or malformed; the message names it and a remedy."""


class Target(msgspec.Struct, frozen=True):
    """Address and TLS files of a cluster. The files are read where the connection is made."""

    endpoints: tuple[str, ...]
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""

    @property
    def tls(self) -> bool:
        return bool(self.tls_ca_file or self.tls_cert_file)


class BrowseOptions(msgspec.Struct, frozen=True):
    """Options of a snapshot scan. Instants are microseconds since 1970, or None if not given. Empty
    `states` and `kinds` mean any. `retry_seconds` is how long failures may last without a row.
    """

    target: Target
    namespace: str
    queue: str
    include_value: bool
    states: tuple[int, ...]
    kinds: tuple[str, ...]
    starting_us: int | None
    ending_us: int | None
    min_partitions: int
    retry_seconds: float


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream. `max_items` and `max_bytes` hold for a micro-batch. `poll_seconds` is
    how long the driver waits for its first item. `adopts`: a query whose checkpoint is behind the
    queue continues at the queue's position. `max_replays` (0: any number) is how many runs may
    begin while a batch is open; after that it is an error, or with `gives_up` its items become dead
    letters. Other fields are as in `BrowseOptions`.
    """

    target: Target
    namespace: str
    queue: str
    reader_id: str
    include_value: bool
    max_items: int
    max_bytes: int
    min_partitions: int
    poll_seconds: float
    fail_on_data_loss: bool
    adopts: bool
    max_replays: int
    gives_up: bool
    retry_seconds: float


def check_options(given: Mapping[str, str]) -> None:
    """Checks that need no knowledge of the intended operation. Raises OptionError."""
    if named(given).keys() & set(_OF_STREAMS):
        stream_options(given)
    else:
        browse_options(given)


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Raises OptionError."""
    options = named(given)
    _check_use(options, _OF_BROWSE, "spark.read", "in a stream, use where(…) on its columns")
    reader_id = required(
        options, "readerId", "a name for this query, which the queue remembers across restarts"
    )
    if len(reader_id.encode()) > READER_ID_BYTES_MAX:
        raise OptionError(
            f"option readerId has {len(reader_id.encode())} bytes: at most {READER_ID_BYTES_MAX}"
        )
    mismatch = options.get("onCheckpointMismatch", _MISMATCHES[0])
    if mismatch.lower() not in _MISMATCHES:
        raise OptionError(f"option onCheckpointMismatch is {mismatch!r}: give fail or adopt")
    policy = options.get("poisonPolicy", "fail")
    if policy.lower() not in _POISON_POLICIES:
        raise OptionError(f"option poisonPolicy is {policy!r}: give fail or deadLetter")
    max_replays = int(
        number(options, "maxBatchReplays", default=0, least=1, most=BATCH_REPLAYS_MAX)
    )
    if "poisonPolicy" in options and not max_replays:
        raise OptionError(
            "option poisonPolicy says what becomes of a batch that is replayed too often: give "
            "maxBatchReplays, too"
        )
    return StreamOptions(
        target=target(options),
        namespace=options.get("namespace", ""),
        queue=_queue(options),
        reader_id=reader_id,
        include_value=_truth(options, "includeValue", default=True),
        max_items=_count(options, "maxItemsPerTrigger", BATCH_ITEMS_DEFAULT, BATCH_ITEMS_MAX),
        max_bytes=_count(options, "maxBytesPerTrigger", BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX),
        min_partitions=_count(options, "minPartitions", 1, MIN_PARTITIONS_MAX),
        poll_seconds=number(
            options, "pollTimeout", default=POLL_SECONDS, least=0, most=60, unit="seconds"
        ),
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        adopts=mismatch.lower() == "adopt",
        max_replays=max_replays,
        gives_up=_POISON_POLICIES[policy.lower()],
        retry_seconds=retry_seconds(options),
    )


def browse_options(given: Mapping[str, str]) -> BrowseOptions:
    """Raises OptionError."""
    options = named(given)
    _check_use(options, _OF_STREAMS, "spark.readStream", "leave it out")
    starting_us = _instant_us(options, "startingTimestamp")
    ending_us = _instant_us(options, "endingTimestamp")
    if ending_us == 0:
        value = options["endingTimestamp"]
        raise OptionError(f"option endingTimestamp is {value!r}: give an instant after 1970 began")
    if starting_us is not None and ending_us is not None and starting_us >= ending_us:
        raise OptionError(
            f"option startingTimestamp is {options['startingTimestamp']!r}: it must be before "
            f"endingTimestamp, which is {options['endingTimestamp']!r}"
        )
    return BrowseOptions(
        target=target(options),
        namespace=options.get("namespace", ""),
        queue=_queue(options),
        include_value=_truth(options, "includeValue", default=True),
        states=_states(options),
        kinds=tuple(_listed(options, "kinds")),
        starting_us=starting_us,
        ending_us=ending_us,
        min_partitions=_count(options, "minPartitions", 1, MIN_PARTITIONS_MAX),
        retry_seconds=retry_seconds(options),
    )


def is_of_a_table(given: Mapping[str, str]) -> bool:
    """Whether these are options that Spark's catalogue is about to store with a table."""
    return "provider" in given


def named(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their documented names. Raises OptionError."""
    options = {}
    for key, value in given.items():
        said = key.lower().removeprefix(_OF_A_TABLE)
        if said in _OF_TABLES:
            continue
        name = _BY_LOWER.get(said)
        if (kafka := _KAFKA_BY_LOWER.get(said)) is not None:
            raise OptionError(f"querator has no option {kafka!r}: {_OF_KAFKA[kafka]}")
        if name is None:
            near = difflib.get_close_matches(said, _BY_LOWER, n=2, cutoff=0.6)
            meant = " or ".join(_BY_LOWER[each] for each in near)
            way_out = f"did you mean {meant}?" if meant else f"there are {', '.join(NAMES)}"
            raise OptionError(f"querator has no option {key!r}: {way_out}")
        options[name] = _one_text(name, value.strip())
    return options


def _one_text(name: str, value: str) -> str:
    """Spark makes a text of whatever a program gives. Raises OptionError for the text of a list."""
    if _LIST.fullmatch(value) is None:
        return value
    texts = re.findall(r"""['"]([^'"]*)['"]""", value)
    if name in _LISTS:
        way_out = f'give one text with commas between, "{",".join(texts)}"'
    else:
        way_out = "give one text"
    raise OptionError(f"option {name} is {value}, a list: {way_out}")


def required(options: Mapping[str, str], name: str, what: str) -> str:
    value = options.get(name, "")
    if not value:
        raise OptionError(f'option {name} is missing: give {what}, .option("{name}", "…")')
    return value


def _queue(options: Mapping[str, str]) -> str:
    queue = required(options, "queue", "the name of the queue")
    if "," in queue:
        raise OptionError(
            f"option queue is {queue!r}: give one queue, and combine several frames by union"
        )
    return queue


def _check_use(options: Mapping[str, str], others: Sequence[str], whose: str, instead: str) -> None:
    for name in others:
        if name in options:
            raise OptionError(f"option {name} is for {whose} only: {instead}")


def target(options: Mapping[str, str]) -> Target:
    endpoint = required(options, "endpoint", "host:port of a node, or several with commas between")
    try:
        endpoints = split_addresses(endpoint, argument="option endpoint")
    except ValueError as error:
        raise OptionError(f"{error}; several with commas between") from None
    cert, key = options.get("tlsCertFile", ""), options.get("tlsKeyFile", "")
    if bool(cert) != bool(key):
        raise OptionError("tlsCertFile and tlsKeyFile go together: give both or none")
    return Target(endpoints, options.get("tlsCaFile", ""), cert, key)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in _TRUTH:
        raise OptionError(f"option {name} is {value!r}: give true or false")
    return _TRUTH[value.lower()]


def number(
    options: Mapping[str, str],
    name: str,
    *,
    default: float,
    least: float,
    most: float,
    unit: str = "",
) -> float:
    value = options.get(name)
    if value is None:
        return default
    try:
        number = float(value) if unit else int(value)
    except ValueError:
        number = -1
    if not least <= number <= most:
        kind = "a number" if unit else "a whole number"
        span = f"{kind} from {least} to {most}{unit and ' ' + unit}"
        raise OptionError(f"option {name} is {value!r}: give {span}")
    return number


def _count(options: Mapping[str, str], name: str, default: int, most: int) -> int:
    return int(number(options, name, default=default, least=1, most=most))


def retry_seconds(options: Mapping[str, str]) -> float:
    return number(
        options, "retryTimeout", default=RETRY_SECONDS, least=1, most=86_400, unit="seconds"
    )


def _listed(options: Mapping[str, str], name: str) -> list[str]:
    """Texts separated by commas; none if the option is not given."""
    if name not in options:
        return []
    return [part.strip() for part in options[name].split(",")]


def _states(options: Mapping[str, str]) -> tuple[int, ...]:
    chosen = []
    for state in _listed(options, "states"):
        if state.lower() not in _STATES:
            raise OptionError(
                f"option states has {state!r}: there are {', '.join(_STATES)}, with commas between"
            )
        chosen.append(int(_STATES[state.lower()]))
    return tuple(chosen)


def _instant_us(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if value.isdecimal():
        at_us = int(value) * 1_000
    else:
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            instant = None
        if instant is None or instant.tzinfo is None:
            raise OptionError(
                f"option {name} is {value!r}: give an instant with its zone, such as "
                "2026-03-01T00:00:00Z, or milliseconds since 1970"
            )
        at_us = round(instant.timestamp() * 1_000_000)
    if not 0 <= at_us < _YEAR_10000_US:
        raise OptionError(f"option {name} is {value!r}: give an instant from 1970 to 9999")
    return at_us
