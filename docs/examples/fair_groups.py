from querator import FairGroup, Item, SyncClient


def shown(leased):
    return " ".join(item.item.group for item in leased)


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue(
        "renders",
        kind="fair",
        fairness="turns",
        groups=[FairGroup("acme", weight=2), FairGroup("trial", leased_max=2)],
    )
    client.produce("renders", *[Item(b"frame", group="globex") for _ in range(1_000)])
    client.produce("renders", *[Item(b"frame", group="acme") for _ in range(100)])
    client.produce("renders", Item(b"frame", group="initech"))

    first = client.lease("renders", max_items=7)
    counts = {group: shown(first).split().count(group) for group in ("acme", "globex", "initech")}
    print("the first seven:", counts)
    for item in first:
        item.complete()

    client.produce("renders", *[Item(b"frame", group="trial.ann") for _ in range(50)])
    client.produce("renders", *[Item(b"frame", group="trial.ben") for _ in range(50)])
    leased = client.lease("renders", max_items=20)
    print("trial has", shown(leased).count("trial"), "of", len(leased))

    for group in sorted(client.list_groups("renders"), key=lambda group: group.path):
        print(f"{group.path or '(all)'}: {group.ready} ready, {group.leased} leased")

    for item in leased:
        item.complete()
    client.update_queue("renders", groups=[FairGroup("acme", weight=2)])
    leased = client.lease("renders", max_items=40)
    print("without a limit, trial has", shown(leased).count("trial"), "of", len(leased))
