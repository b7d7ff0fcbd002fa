import time
from collections import Counter
from datetime import timedelta

from querator import Item, Reject, SyncClient

IDLE = timedelta(seconds=1)
HOPELESS = "the address is wrong"


def work(client, currencies):
    """Bills what is in the queue, with a version of the program that knows these currencies."""

    def bill(item):
        to, currency = item.text().split()
        if to == "nowhere":
            raise Reject(HOPELESS)
        if currency not in currencies:
            raise Reject(f"no such currency: {currency}")

    with client.consumer("bills", idle_timeout=IDLE) as bills:
        bills.run(bill)


def letters(client):
    """The dead letters, when all of them have arrived in the dead queue."""
    while client.stats("bills").total.moving:
        time.sleep(0.05)
    return list(client.dead_letters("bills"))


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("bills")
    bills = ("ann CHF", "bob EUR", "nowhere CHF", "eve EUR")
    client.produce("bills", *[Item(bill, dedup_key=bill) for bill in bills])
    work(client, {"CHF"})

    dead = letters(client)
    for error, count in sorted(Counter(one.dead_letter.errors[-1] for one in dead).items()):
        print(f"{count} died: {error}")

    # The program is mended: it knows euros. What it can do now comes again, the rest goes.
    hopeless = [one.id for one in dead if one.dead_letter.errors[-1] == HOPELESS]
    print("dropped:", client.drop_dead_letters("bills", hopeless))
    print("redriven:", client.redrive("bills"))
    work(client, {"CHF", "EUR"})
    print("done:", client.stats("bills").total.completed, "dead:", len(letters(client)))
