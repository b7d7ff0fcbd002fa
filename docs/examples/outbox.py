import sqlite3
import time
from datetime import timedelta

from querator import Item, SyncClient

ORDERS = 5


def open_shop():
    shop = sqlite3.connect("shop.db", isolation_level=None)
    shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, what TEXT)")
    shop.execute("CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, payload TEXT)")
    return shop


def order(shop, what):
    """The order and the word about it, in one transaction of the database."""
    shop.execute("BEGIN")
    number = shop.execute("INSERT INTO orders (what) VALUES (?)", (what,)).lastrowid
    shop.execute("INSERT INTO outbox VALUES (?, ?)", (number, f"order {number}: {what}"))
    shop.execute("COMMIT")


def relay(shop, client):
    """Sends what is in the outbox, the oldest first. Returns when it is empty."""
    while rows := shop.execute("SELECT * FROM outbox ORDER BY id LIMIT 2").fetchall():
        client.produce("orders", *[Item(text, dedup_key=f"order-{id}") for id, text in rows])
        # Killed here, the next run sends these again, and they are stored once.
        print("sent", *[id for id, _ in rows], flush=True)
        time.sleep(0.1)
        shop.execute("DELETE FROM outbox WHERE id <= ?", (rows[-1][0],))


shop = open_shop()
with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("orders", dedup_window=timedelta(days=7))
    while shop.execute("SELECT count(*) FROM orders").fetchone()[0] < ORDERS:
        order(shop, "a bicycle")
    with client.lock("shop-outbox", lease_timeout=timedelta(seconds=3)):
        relay(shop, client)
    print("in the queue:", client.stats("orders").total.ready)
