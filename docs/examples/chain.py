from datetime import timedelta

from querator import Item, SyncClient

WAIT = timedelta(seconds=10)


def take(client, queue):
    [item] = client.lease(queue, wait=WAIT)
    return item


with SyncClient("127.0.0.1:4470") as client:
    for queue in ("orders", "invoices", "parcels"):
        client.create_queue(queue)
    client.produce("orders", "order 17")

    order = take(client, "orders")
    order.complete(
        follow_ups={
            "invoices": Item(order.payload, dedup_key="invoice 17"),
            "parcels": [Item("box 1", key="17"), Item("box 2", key="17")],
        }
    )
    print("orders:", client.stats("orders").total.ready)
    print("invoices:", take(client, "invoices").text())

    box = take(client, "parcels")
    box.complete(follow_ups={"parcels": Item("label of " + box.text(), priority=-1)})
    print("parcels:", take(client, "parcels").text())
