from datetime import timedelta

from querator import SyncClient

PAGES = 6


def convert(client, worker, dies_at=0):
    """Works on one film, page by page. A worker that dies leaves its lease as it is."""
    [item] = client.lease("films", wait=timedelta(seconds=30))
    page = int(item.checkpoint or b"0")
    print(f"{worker}: attempt {item.attempt} begins after page {page}")
    while page < PAGES:
        page += 1
        item.save_checkpoint(b"%d" % page)
        if page == dies_at:
            return
    item.complete()
    print(f"{worker}: done")


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("films", partitions=1, lease_timeout=timedelta(seconds=1))
    client.produce("films", "the third man")
    convert(client, "first", dies_at=4)
    # The lease of the first worker lapses, and the second one gets the film.
    convert(client, "second")
