from datetime import timedelta

from querator import Item, SyncClient


def ask(client):
    """Asks for the thumbnail of picture 17, and returns whether that was stored."""
    [item] = client.produce("thumbnails", Item("17.png", dedup_key="17"))
    return not item.duplicate


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("thumbnails", dedup_until="done")
    print("stored:", ask(client))
    print(f"stored: {ask(client)}, as the first waits")
    [item] = client.lease("thumbnails", wait=timedelta(seconds=10))
    print(f"stored: {ask(client)}, as it is being worked on")
    item.complete()
    print("stored:", ask(client))

    [newer] = client.produce("thumbnails", Item("17-b.png", dedup_key="17", on_duplicate="replace"))
    print("replaced:", newer.replaced is not None)
    [item] = client.lease("thumbnails", wait=timedelta(seconds=10))
    print("newest:", item.text())
    item.complete()
