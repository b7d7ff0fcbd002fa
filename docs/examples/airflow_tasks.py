import time
from datetime import date, timedelta

from querator import Item, SyncClient

ADDRESS = "127.0.0.1:4470"


def fill(queue: str, day: date, rows: list[bytes]) -> int:
    """Makes an item of each row of a day. A repeat, as by a retry of the task, stores nothing
    twice: a row has the same dedup key whenever the task runs for its day.
    """
    items = [Item(row, dedup_key=f"{day}-{number}") for number, row in enumerate(rows)]
    with SyncClient(ADDRESS) as client, client.producer(queue) as producer:
        producer.produce_many(items)
    return len(items)


def is_done(queue: str) -> bool:
    """For a sensor: whether no item of the queue is left to do."""
    with SyncClient(ADDRESS) as client:
        total = client.stats(queue).total
    waiting = total.ready + total.leased + total.scheduled + total.held + total.moving
    return waiting + total.staged == 0


def check_dead_letters(queue: str) -> None:
    """Fails the task if items have died, with the first of them and their last errors."""
    with SyncClient(ADDRESS) as client:
        dead = list(client.dead_letters(queue, limit=3))
    if dead:
        words = "; ".join(
            f"{letter.item.payload!r}: {letter.dead_letter.errors[-1:]}" for letter in dead
        )
        raise RuntimeError(f"{queue} has dead letters, the first: {words}")


if __name__ == "__main__":
    with SyncClient(ADDRESS) as client:
        client.create_queue("orders-dead")
        client.create_queue("orders", dead_queue="orders-dead", dedup_window=timedelta(days=7))
        day = date(2026, 3, 1)
        print("filled:", fill("orders", day, [b"one", b"two"]))
        print("again:", fill("orders", day, [b"one", b"two"]))
        print("stored:", client.stats("orders").total.ready, "done:", is_done("orders"))
        one, two = client.lease("orders", max_items=2)
        one.complete()
        two.reject("no such customer")
    while not is_done("orders"):
        time.sleep(0.1)
    try:
        check_dead_letters("orders")
    except RuntimeError as error:
        print(error)
