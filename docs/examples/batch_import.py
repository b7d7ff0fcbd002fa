import csv
import itertools
import time
from datetime import timedelta
from pathlib import Path

from querator import Item, SyncClient

FILE = Path("customers.csv")
AT_ONCE = 100

if not FILE.exists():
    FILE.write_text("".join(f"{number},customer {number}\n" for number in range(1, 501)))


def items(rows, name, first):
    """An item for each line. Its key names the line, so that a line is stored once."""
    for line, row in enumerate(rows, first):
        yield Item(row[1], dedup_key=f"{name}:{line}", attributes={"id": row[0]})


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("customers", partitions=4, dedup_window=timedelta(days=7))
    with FILE.open(newline="") as file, client.producer("customers", ordered=False) as producer:
        rows = csv.reader(file)
        for first in itertools.count(1, AT_ONCE):
            part = list(itertools.islice(rows, AT_ONCE))
            if not part:
                break
            # Returns when all of them are durable.
            producer.produce_many(items(part, FILE.name, first))
            print("lines up to", first + len(part) - 1, flush=True)
            time.sleep(0.05)
    print("in the queue:", client.stats("customers").total.ready)
