import json
import sqlite3
import time
from datetime import timedelta

from querator import Item, SyncClient

STEPS = ["flight", "hotel", "car"]


class SoldOut(Exception):
    pass


def open_agency():
    agency = sqlite3.connect("agency.db", isolation_level=None)
    agency.execute("CREATE TABLE IF NOT EXISTS done (trip TEXT, what TEXT, UNIQUE (trip, what))")
    return agency


def do(agency, trip, what):
    """What another system does. It is idempotent: a repeat with the same names changes nothing."""
    if what == "book car":
        raise SoldOut
    agency.execute("INSERT OR IGNORE INTO done VALUES (?, ?)", (trip, what))
    print(what, flush=True)
    time.sleep(0.1)


def step(trip, place, *, undo=False):
    """The item for a step; None after the last one."""
    if not 0 <= place < len(STEPS):
        return None
    kind = "cancel" if undo else "book"
    return Item(json.dumps({"trip": trip, "place": place}), kind=kind, key=trip)


def handle(agency, item):
    """Does a step, and says what follows."""
    trip, place = item.json()["trip"], item.json()["place"]
    try:
        do(agency, trip, f"{item.kind} {STEPS[place]}")
    except SoldOut:
        return step(trip, place - 1, undo=True)
    if item.kind == "cancel":
        return step(trip, place - 1, undo=True)
    return step(trip, place + 1)


agency = open_agency()
with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("trips", lease_timeout=timedelta(seconds=3), dedup_until="window")
    first = step("trip-17", 0)
    client.produce("trips", Item(first.payload, kind="book", key="trip-17", dedup_key="trip-17"))
    with client.consumer("trips", idle_timeout=timedelta(seconds=5)) as trips:
        for item in trips:
            following = handle(agency, item)
            item.complete(follow_ups={"trips": following} if following else None)
            if following is None:
                break
    for (what,) in agency.execute("SELECT what FROM done ORDER BY rowid"):
        print("in the books:", what)
