from datetime import UTC, datetime, timedelta

from querator import SyncClient

with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("reports")
    recurrences = client.recurrences

    made = recurrences.create(
        "reports",
        "weekdays",
        '{"day": "{{due_at}}", "run": {{number}}}',
        cron="0 9 * * 1-5",
        time_zone="Europe/Berlin",
        missed_runs="all",
        overlap="skip",
    )
    print("made:", made.created)

    # The clocks go forward on 29 March 2026.
    friday = datetime(2026, 3, 27, tzinfo=UTC)
    for run in recurrences.next("reports", "weekdays", count=2, after=friday):
        print("due:", run.due_at.isoformat())

    recurrences.create("reports", "tick", "{{number}}", interval=timedelta(seconds=1))
    ticks = []
    while len(ticks) < 3:
        for item in client.lease("reports", max_items=10, wait=timedelta(seconds=10)):
            ticks.append(item.text())
            item.complete()
    print("ticks:", ticks[:3])

    recurrences.delete("reports", "tick")
    print("left:", [one.name for one in recurrences.list("reports")])
