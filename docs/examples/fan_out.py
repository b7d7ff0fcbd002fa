import json
import threading
from datetime import timedelta

from querator import Item, SyncClient

ADDRESS = "127.0.0.1:4470"
PARTS = 5
WAIT = timedelta(seconds=60)
KEEP = timedelta(hours=1)
LEASE = timedelta(seconds=3)


def work():
    """A worker of the parts. Run as many as you like, on any machine."""
    with SyncClient(ADDRESS) as client, client.consumer("parts") as parts:
        for part in parts:
            number = int(part.text())
            part.complete(result=str(number * number).encode())


def coordinate():
    """A worker of the jobs."""
    with SyncClient(ADDRESS) as client, client.consumer("jobs") as jobs:
        for job in jobs:
            job.complete(result=str(gather(client, job)).encode())


def gather(client, job):
    """Shares the job out, waits for all parts, and puts their results together."""
    if not job.checkpoint:
        parts = [
            Item(str(number), dedup_key=f"{job.id}-{number}", keep_result=KEEP)
            for number in range(PARTS)
        ]
        ids = [str(part.id) for part in client.produce("parts", *parts)]
        job.save_checkpoint(json.dumps(ids).encode())
        print("parts are stored", flush=True)
    ids = json.loads(job.checkpoint)
    results = client.results("parts", ids, timeout=WAIT)
    return sum(int(result.value()) for result in results)


with SyncClient(ADDRESS) as client:
    client.create_queue("jobs", lease_timeout=LEASE)
    client.create_queue("parts", partitions=2, lease_timeout=LEASE)
    for worker in (work, work, coordinate):
        threading.Thread(target=worker, daemon=True).start()
    [job] = client.produce("jobs", Item("squares", dedup_key="squares", keep_result=KEEP))
    print("total:", client.result("jobs", job.id, timeout=WAIT).decode())
    print("parts in all:", client.stats("parts").total.produced)
