import sqlite3
import time
from datetime import timedelta

from querator import SyncClient

PAGES = 5
LEASE = timedelta(seconds=3)


def open_store():
    store = sqlite3.connect("report.db", isolation_level=None)
    store.execute("CREATE TABLE IF NOT EXISTS pages (number INTEGER PRIMARY KEY)")
    store.execute("CREATE TABLE IF NOT EXISTS fence (one INTEGER PRIMARY KEY, token INTEGER)")
    store.execute("INSERT OR IGNORE INTO fence VALUES (1, 0)")
    return store


def write(store, token, page):
    """Writes, unless the store has seen a higher token."""
    with store:
        store.execute("BEGIN IMMEDIATE")
        newer = "UPDATE fence SET token = ? WHERE token <= ?"
        if not store.execute(newer, (token, token)).rowcount:
            raise RuntimeError("another program has the lock")
        store.execute("INSERT INTO pages VALUES (?)", (page,))


store = open_store()
with SyncClient("127.0.0.1:4470") as client:
    with client.lock("report", lease_timeout=LEASE) as lock:
        (done,) = store.execute("SELECT count(*) FROM pages").fetchone()
        for page in range(done + 1, PAGES + 1):
            time.sleep(0.1)
            lock.check()
            write(store, lock.token, page)
            print("page", page, flush=True)
