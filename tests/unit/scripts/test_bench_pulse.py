"""The counts of `make failover`: pauses are those of the worst partition, and include the edges of
a window.
"""

import pytest

from querator.client.values import PartitionStats
from scripts.bench.pulse import Beats, Books


def beats(*instants: float) -> Beats:
    made = Beats()
    for at_s in instants:
        made.add(at_s)
    return made


@pytest.mark.parametrize(
    ("instants", "pause"),
    [
        ((0, 1, 2, 3, 4, 5), 1),
        ((0, 1, 4, 5), 3),
        ((0, 3), 3),
        ((1.5, 6), 4.5),
        ((0, 2.5), 2.5),
        ((3,), 2),
        ((), 3),
        ((8, 9), 7),
    ],
)
def test_a_pause_that_reaches_into_the_window_counts_whole(
    instants: tuple[float, ...], pause: float
) -> None:
    assert beats(*instants).longest_pause(1, 4) == pause


def stats(**counts: int) -> PartitionStats:
    zeros = dict.fromkeys(PartitionStats.__struct_fields__, 0)
    none = {"oldest_ready_at": None, "oldest_batch_at": None}
    return PartitionStats(**{**zeros, **none, **counts})  # type: ignore[arg-type]


async def test_the_books_name_what_does_not_balance() -> None:
    books = Books(1)
    for number in (1, 2):
        books.acknowledge(number, 0)
        books.deliver(number, 0)
        books.complete(number)
    assert books.problems(stats(produced=2, completed=2)) == []
    books.acknowledge(3, 0)
    books.complete(2)
    books.complete(4)
    books.errors.append("produce: refused")
    problems = books.problems(stats(produced=3, completed=2, ready=1, dead=1))
    assert problems == [
        "the clients saw 1 errors",
        "1 acknowledged items were never completed",
        "1 items were completed twice",
        "1 items were completed without an acknowledged produce",
        "the server counts 2 completed",
        "1 items are left in the queue",
        "1 items died",
    ]
