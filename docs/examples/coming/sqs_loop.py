from datetime import timedelta

from querator import Item, SyncClient

with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("jobs")
    client.produce("jobs", Item("resize 17", key="album-3", dedup_key="resize-17"))

    while items := client.lease("jobs", max_items=10, wait=timedelta(seconds=2)):
        for item in items:
            print(item.payload.decode(), item.attempt, flush=True)
            item.complete()
