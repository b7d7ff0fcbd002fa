"""The settings of groups of fair queues."""

import msgspec

from querator.client.limit_values import RateLimit


class FairGroup(msgspec.Struct, frozen=True):
    """The settings of one group of a fair queue. `path`: its name, for example "eu.de": the group
    `de` below the group `eu`. `weight`: its part among the groups with the same parent, 1 to 1,000.
    `leased_max`: how many of its items are leased at most, with those of the groups below it; None:
    as the queue says. `paused`: none of its items is leased, nor those of the groups below it.
    `rate_limit`: how many of its items are leased in a time, with those of the groups below it;
    None: as the queue says.
    """

    path: str
    weight: int = 1
    leased_max: int | None = None
    paused: bool = False
    rate_limit: RateLimit | None = None
