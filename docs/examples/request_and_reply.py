import threading
from datetime import timedelta

from querator import SyncClient
from querator.errors import ItemDied

ADDRESS = "127.0.0.1:4470"
WAIT = timedelta(seconds=30)


def work(count):
    """The consumer: it adds numbers, and rejects what is none."""
    with SyncClient(ADDRESS) as client, client.consumer("sums") as sums:
        for item in sums:
            try:
                total = sum(int(word) for word in item.text().split())
            except ValueError as error:
                item.reject(str(error))
            else:
                item.complete(result=b"%d" % total)
            count -= 1
            if not count:
                return


with SyncClient(ADDRESS) as client:
    client.create_queue("sums")
    worker = threading.Thread(target=work, args=(4,))
    worker.start()
    print("1 + 2 + 3 =", client.produce_and_wait("sums", "1 2 3", timeout=WAIT).decode())
    try:
        client.produce_and_wait("sums", "1 two", timeout=WAIT)
    except ItemDied as died:
        print("1 + two:", died.error)
    for result in client.produce_and_wait_all("sums", "10 20", "30 40", timeout=WAIT):
        print("of many:", result.value().decode())
    worker.join()
