from datetime import timedelta

from querator import Item, SyncClient


def shown(leased):
    return sorted(item.text() for item in leased)


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("accounts", kind="keyed", partitions=3)
    for step in ("open", "pay in", "pay out"):
        for account in ("ann", "ben"):
            client.produce("accounts", Item(f"{account}: {step}", key=account))

    leased = client.lease("accounts", max_items=10, wait=timedelta(seconds=1))
    while len(leased) < 2:
        leased += client.lease("accounts", max_items=10, wait=timedelta(seconds=1))
    print("first:", shown(leased))
    print("meanwhile:", shown(client.lease("accounts", max_items=10)))

    ann, ben = sorted(leased, key=lambda item: item.text())
    ann.complete()
    ben.retry(delay=timedelta(hours=1), error="the bank is closed")
    print("then:", shown(client.lease("accounts", max_items=10, wait=timedelta(seconds=5))))

    [stuck] = client.list_keys("accounts", blocked=True)
    print("stuck:", stuck.key, stuck.waiting, stuck.head_attempts)
    client.skip_key("accounts", stuck.key, stuck.head)
    print("skipped:", shown(client.lease("accounts", max_items=10, wait=timedelta(seconds=5))))
