from datetime import UTC, datetime, timedelta

from querator import Item, SyncClient


def names(items):
    return ", ".join(item.item.payload.decode() for item in items)


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("reminders", partitions=3)
    hour = timedelta(hours=1)
    start = datetime.now(UTC) + 12 * hour
    for place, name in enumerate(("ann", "ben", "cem", "dia")):
        due = start + place * hour
        client.produce("reminders", Item(name, kind="call", reference=name, enqueue_at=due))

    schedules = client.schedules
    print("due:", names(schedules.list("reminders")))
    ids = {item.item.reference: item.id for item in schedules.list("reminders", kind="call")}

    schedules.move("reminders", [ids["ann"]], to=start + timedelta(days=1))
    print("moved:", names(schedules.list("reminders")))

    chosen = schedules.cancel("reminders", due_until=start + 3 * hour, dry_run=True)
    print("would cancel:", chosen.changed)
    schedules.cancel("reminders", due_until=start + 3 * hour)

    schedules.run_now("reminders", [ids["dia"]])
    for item in client.lease("reminders", wait=timedelta(seconds=10)):
        print("now:", item.text())
        item.complete()

    counts = schedules.count("reminders", interval=hour)
    print("left:", [bucket.items for bucket in counts.buckets])
