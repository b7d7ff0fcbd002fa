"""Options of `querator queue` for groups of fair queues, and how their settings are shown."""

from collections.abc import Callable, Iterable
from typing import Any

import click
import msgspec

from querator.cli.limits import RateType, rate_text
from querator.cli.shared.parameters import WholeNumber
from querator.client import FairGroup, QueueInfo, RateLimit
from querator.model import limits
from querator.model.errors import QueratorError
from querator.model.group_paths import check_group_path


class GroupNumber(click.ParamType[tuple[str, int]]):
    """A number for a group: `eu.de=3`. If `for_all`, a number alone stands for all groups, and its
    path is empty.
    """

    name = "group number"

    def __init__(self, least: int, most: int, *, for_all: bool = False) -> None:
        self._least, self._most = least, most
        self._for_all = for_all

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        path, separator, text = value.rpartition("=")
        if not separator and not self._for_all:
            self.fail(f"{value!r} names no group; write for example eu=3.", param, ctx)
        if separator:
            try:
                check_group_path(path, field=f"the group {path[:64]!r}")
            except QueratorError as error:
                self.fail(f"{error.message}.", param, ctx)
        try:
            number = int(text)
        except ValueError:
            number = self._least - 1
        if not self._least <= number <= self._most:
            wanted = f"a whole number from {self._least} to {self._most}"
            self.fail(f"{text!r} is not {wanted}.", param, ctx)
        return path, number


def flow_options(command: Any) -> Any:
    """The settings of fair and keyed queues that can be changed."""
    for option in _OPTIONS:
        command = option(command)
    return command


class GroupRate(click.ParamType[tuple[str, RateLimit | int]]):
    """A rate for a group: `eu.de=10/s`. A rate alone is for all groups, and its path is empty."""

    name = "group rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, RateLimit | int]:
        if isinstance(value, tuple):
            return value
        path, separator, text = value.rpartition("=")
        if separator:
            try:
                check_group_path(path, field=f"the group {path[:64]!r}")
            except QueratorError as error:
                self.fail(f"{error.message}.", param, ctx)
        return path, RateType().convert(text, param, ctx)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--key-retry-blocks/--no-key-retry-blocks",
        default=None,
        help="Keyed queues: whether an item that is retried later keeps back the later items of "
        "its key; default at creation: it does.",
    ),
    click.option(
        "--key-max",
        "key_leased_max",
        type=WholeNumber(1, limits.FLOW_LEASED_MAX),
        metavar="N",
        help="Keyed queues: most items of a key that are leased together, to one consumer; "
        "default at creation: 1.",
    ),
    click.option(
        "--key-rate",
        "key_rate_limit",
        type=RateType(),
        metavar="N/TIME",
        help="Keyed queues: most items of each key that are leased in a time; default at creation, "
        "and 0: no limit.",
    ),
    click.option(
        "--group-rate",
        "group_rates",
        type=GroupRate(),
        multiple=True,
        metavar="[GROUP=]N/TIME",
        help="Fair queues: most items of a group that are leased in a time, or of each group "
        "without a rate of its own; 0: no limit. Repeatable.",
    ),
    click.option(
        "--group-max",
        "group_limits",
        type=GroupNumber(0, limits.FLOW_LEASED_MAX, for_all=True),
        multiple=True,
        metavar="[GROUP=]N",
        help="Fair queues: most leased items of a group, or of each group without a limit of its "
        "own; 0: none. Repeatable.",
    ),
    click.option(
        "--group-weight",
        "group_weights",
        type=GroupNumber(1, limits.GROUP_WEIGHT_MAX),
        multiple=True,
        metavar="GROUP=N",
        help="Fair queues: weight of a group among its neighbours, 1 to 1000; others have 1. "
        "Repeatable.",
    ),
    click.option(
        "--fairness",
        type=click.Choice(("turns", "in-flight")),
        callback=lambda _context, _parameter, value: value and value.replace("-", "_"),
        help="Fair queues: whether groups take turns by weight, or the group with the fewest "
        "leased items comes first (default at creation).",
    ),
)


def flow_settings(settings: dict[str, Any], known: Iterable[FairGroup] = ()) -> dict[str, Any]:
    """The settings with `groups` and `group_leased_max` in place of the options. `known`: the
    settings of groups that are in force.
    """
    settings = dict(settings)
    weights, limited = settings.pop("group_weights"), settings.pop("group_limits")
    rates = settings.pop("group_rates")
    groups = {group.path: group for group in known}
    for path, weight in weights:
        there = groups.get(path, FairGroup(path))
        groups[path] = msgspec.structs.replace(there, weight=weight)
    for path, limit in limited:
        if path:
            there = groups.get(path, FairGroup(path))
            groups[path] = msgspec.structs.replace(there, leased_max=limit or None)
        else:
            settings["group_leased_max"] = limit
    for path, rate in rates:
        if path:
            there = groups.get(path, FairGroup(path))
            groups[path] = msgspec.structs.replace(there, rate_limit=rate or None)
        else:
            settings["group_rate_limit"] = rate
    if weights or any(path for path, _ in (*limited, *rates)):
        settings["groups"] = [
            group for path, group in sorted(groups.items()) if group != FairGroup(path)
        ]
    return settings


def flow_details(info: QueueInfo) -> tuple[tuple[str, object], ...]:
    """What `queue info` shows of a fair or keyed queue."""
    if info.kind == "fair":
        by = {
            "turns": "groups take turns by weight",
            "in_flight": "the group with the fewest leased items for its weight comes first",
        }
        return (
            ("kind", "fair"),
            ("fairness", by[info.fairness]),
            ("leased per group", info.group_leased_max or "no limit"),
            *_rate_detail("rate per group", info.group_rate_limit),
            ("groups", ", ".join(map(_group_text, info.groups)) or "all have weight 1"),
        )
    if info.kind == "keyed":
        retried = "the later items of its key" if info.key_retry_blocks else "nothing"
        return (
            ("kind", "keyed"),
            ("leased per key", info.key_leased_max),
            *_rate_detail("rate per key", info.key_rate_limit),
            ("a later retry", f"keeps back {retried}"),
        )
    return ()


def _rate_detail(name: str, rate: RateLimit | None) -> tuple[tuple[str, object], ...]:
    return () if rate is None else ((name, rate_text(rate)),)


def _group_text(group: FairGroup) -> str:
    limit = "" if group.leased_max is None else f", at most {group.leased_max:,} leased"
    rate = "" if group.rate_limit is None else f", {rate_text(group.rate_limit)}"
    paused = ", paused" if group.paused else ""
    return f"{group.path} (weight {group.weight:,}{limit}{rate}{paused})"
