"""The rules of a partition as scenarios (`scenario` explains the language)."""

import pytest

from tests.unit.partition.scenario_language import run

SCENARIOS = {
    "produce, lease, complete": """
        configure
        produce 3 -> 1-3
        lease 2 -> 1-2
        lease 5 -> 3
        lease 5 -> none
        complete L1 -> done 1-2
        complete L2 3 -> done 3
        stats ready leased leases produced delivered completed bytes -> 0 0 0 3 3 3 0
    """,
    "nothing works before the partition has its settings": """
        produce 1 -> UNAVAILABLE
        configure
        produce 1 -> 2
    """,
    "older settings are skipped": """
        configure version=5 max_attempts=1
        configure version=4 max_attempts=9
        produce 1 -> 1
        lease 1 -> 1
        retry L1 -> done 1
        stats dead dropped -> 1 1
    """,
    "redelivery order: A, B, C; lease A; retry A; B, C, A": """
        configure
        produce 3 -> 1-3
        lease 1 -> 1
        retry L1 -> done 1
        lease 1 -> 2
        lease 1 -> 3
        lease 1 -> 1x2
        stats retried -> 1
    """,
    "fair shares: 23 items for 20, 6 and 1": """
        configure
        produce 23 -> 1-23
        lease 20 6 1 -> 1-16 | 17-22 | 23
    """,
    "fair shares: 10 items for five callers of 10": """
        configure
        produce 10 -> 1-10
        lease 10 10 10 10 10 -> 1-2 | 3-4 | 5-6 | 7-8 | 9-10
    """,
    "fair shares: what cannot be divided goes to the earlier callers": """
        configure
        produce 5 -> 1-5
        lease 3 0 9 2 -> 1-2 | none | 3-4 | 5
    """,
    "a polite release restores place and attempt": """
        configure
        produce 5 -> 1-5
        lease 3 -> 1-3
        complete L1 2 -> done 2
        retry L1 free -> done 1 3
        lease 3 -> 1 3 4
        stats released retried -> 2 0
    """,
    "releases in another order still give the first order": """
        configure
        produce 6 -> 1-6
        lease 4 -> 1-4
        retry L1 2 4 free -> done 2 4
        lease 1 -> 2
        retry L2 free -> done 2
        retry L1 free -> done 1 3 repeated 2 4
        lease 2 -> 1 2
        lease 9 -> 3-4 5-6
    """,
    "a lease lapses to the tail, and its late complete is lost": """
        configure
        produce 3 -> 1-3
        lease 2 -> 1-2
        wait 29999
        complete L1 1 -> done 1
        wait 1
        complete L1 -> repeated 1 lost 2
        complete L1 1 -> repeated 1
        complete L1 2 -> lost 2
        lease 5 -> 3 2x2
        stats lapsed completed -> 1 1
    """,
    "the state decides, not the clock: late but not lapsed is accepted": """
        configure
        produce 1 -> 1
        lease 1 timeout=1000 -> 1
        extend L1 timeout=5000 -> 5000
        wait 4999
        complete L1 -> done 1
    """,
    "extend never shortens; lost leases are named": """
        configure
        produce 2 -> 1-2
        lease 1 timeout=60000 client=a -> 1
        lease 1 client=b -> 2
        extend L1 timeout=1000 -> 60000
        extend L1 L2 L9 timeout=90000 -> 90000 90000 lost
        wait 10000
        extend client=a -> 80000
        extend client=nobody ->
        complete L2 -> done 2
        extend L2 -> lost
        wait 79999
        stats leased -> 1
        wait 1
        stats leased ready -> 0 1
    """,
    "the lease timeout: the call's, else the item's, else the queue's": """
        configure lease_timeout_ms=10000
        produce 1 timeout=5000 -> 1
        produce 1 timeout=20000 -> 2
        produce 1 -> 3
        lease 2 -> 1L1 2L2
        lease 1 -> 3
        wait 5000
        stats leased ready -> 2 1
        wait 5000
        stats leased ready -> 1 2
        wait 10000
        stats leased ready -> 0 3
        lease 1 timeout=1000 -> 1x2
        wait 1000
        stats leased -> 0
    """,
    "a new lease timeout holds for new leases only": """
        configure lease_timeout_ms=10000
        produce 2 -> 1-2
        lease 1 -> 1
        configure lease_timeout_ms=50000
        lease 1 -> 2
        wait 10000
        stats leased -> 1
        wait 40000
        stats leased -> 0
    """,
    "complete of items of which one has lapsed: an answer for each": """
        configure
        produce 4 -> 1-4
        lease 1 timeout=1000 -> 1
        lease 3 -> 2-4
        wait 1000
        complete L1 1 L2 3 7 L5 9 -> lost 1 | done 3 lost 7 | unknown lost 9
        complete L2 2-4 -> done 2 4 repeated 3
    """,
    "all_or_nothing applies nothing when one is lost": """
        configure
        produce 3 -> 1-3
        lease 3 -> 1-3
        complete L1 1 -> done 1
        complete L1 1-4 all -> repeated 1 lost 4
        retry L1 2 L7 all -> nothing | unknown
        stats leased completed -> 2 1
        complete L1 1-3 all -> done 2-3 repeated 1
    """,
    "a reject or a retry after a release is lost, and nothing happens": """
        configure dead=9
        produce 3 -> 1-3
        lease 3 -> 1-3
        retry L1 1-3 free -> done 1-3
        retry L1 1 dead -> lost 1
        retry L1 2 in=5000 -> lost 2
        retry L1 3 -> lost 3
        retry L1 3 free in=5000 -> lost 3
        retry L1 1-3 free -> repeated 1-3
        stats ready moving scheduled retried released -> 3 0 0 0 3
        lease 3 -> 1-3
    """,
    "all of a lease that was released: only a release is a repeat": """
        configure dead=9
        produce 3 -> 1-3
        lease 3 -> 1-3
        retry L1 1 -> done 1
        retry L1 free -> done 2-3
        retry L1 dead -> lost 1-3
        retry L1 in=5000 -> lost 1-3
        retry L1 -> repeated 1 lost 2-3
        complete L1 -> lost 1-3
        retry L1 free -> repeated 2-3
        extend L1 -> lost
        stats ready moving scheduled -> 3 0 0
    """,
    "each way of giving back repeats itself alone": """
        configure dead=9
        produce 5 -> 1-5
        lease 5 -> 1-5
        retry L1 1 -> done 1
        retry L1 2 in=5000 -> done 2
        retry L1 3 free -> done 3
        retry L1 4 free in=5000 -> done 4
        retry L1 1-4 dead -> lost 1-4
        retry L1 1-4 -> repeated 1 lost 2-4
        retry L1 1-4 in=7000 -> repeated 2 lost 1 3-4
        retry L1 1-4 free -> repeated 3 lost 1-2 4
        retry L1 1-4 free in=7000 -> repeated 4 lost 1-3
        extend L1 -> 30000
        retry L1 dead -> done 5
        retry L1 dead -> repeated 5
        retry L1 1-5 dead -> repeated 5 lost 1-4
    """,
    "an item's own lease timeout holds for that item alone": """
        configure lease_timeout_ms=100000
        produce 1 timeout=1000 -> 1
        produce 1 -> 2
        produce 1 timeout=1000 -> 3
        lease 3 -> 1L1 2L2 3L1
        wait 1000
        stats ready leased lapsed -> 2 1 2
        extend L1 L2 -> lost 100000
        complete L1 L2 -> lost 1 3 | done 2
        lease 3 timeout=5000 -> 1x2 3x2
        wait 4999
        stats leased -> 2
        wait 1
        stats leased -> 0
    """,
    "a longer timeout of an item's own, and extensions": """
        configure lease_timeout_ms=10000
        produce 1 timeout=50000 -> 1
        produce 2 -> 2-3
        produce 1 timeout=20000 -> 4
        lease 4 -> 1L1 2-3L2 4L3
        extend L1 L2 L3 -> 50000 10000 20000
        wait 9000
        extend L1 L2 L3 -> 50000 10000 20000
        extend L1 L2 L3 timeout=15000 -> 50000 15000 20000
        wait 15000
        stats leased ready -> 2 2
        wait 5000
        stats leased ready -> 1 3
        wait 29999
        stats leased ready -> 1 3
        wait 1
        stats leased ready -> 0 4
    """,
    "a repeated request of items with timeouts of their own": """
        configure lease_timeout_ms=30000
        produce 1 timeout=1000 -> 1
        produce 1 -> 2
        lease 5 request=r -> 1L1 2L2
        lease 5 request=r -> 1L1 2L2 repeated L1
        wait 1000
        lease 5 request=r -> 2 repeated L2
        complete L2 -> done 2
        lease 5 request=r -> LEASE_ENDED
        lease 5 request=s -> 1x2
    """,
    "the same verb repeats its outcome, another one is lost": """
        configure
        produce 2 -> 1-2
        lease 2 -> 1-2
        complete L1 1 -> done 1
        retry L1 1 -> lost 1
        retry L1 -> done 2
        retry L1 -> repeated 2
        retry L1 2 -> repeated 2
        complete L1 2 -> lost 2
        complete L1 1 -> repeated 1
        complete L1 -> repeated 1 lost 2
        lease 1 -> 2x2
        complete L1 2 -> lost 2
    """,
    "outcomes are forgotten after their window": """
        configure
        produce 1 -> 1
        lease 1 request=r -> 1
        complete L1 -> done 1
        wait 800000
        complete L1 -> repeated 1
        lease 1 request=r -> LEASE_ENDED
        wait 200000
        complete L1 -> unknown
        lease 1 request=r -> none
    """,
    "the same item twice in one command": """
        configure
        produce 3 -> 1-3
        lease 3 -> 1-3
        complete L1 1 L1 1-2 -> done 1 | done 2 repeated 1
        stats completed leased -> 2 1
    """,
    "a repeated lease request gets the live lease, with what it still holds": """
        configure
        produce 5 -> 1-5
        lease 2 request=r -> 1-2
        lease 2 request=r -> 1-2 repeated L1
        complete L1 1 -> done 1
        lease 9 request=r -> 2 repeated L1
        lease 9 request=r client=d -> 3-5
        complete L1 -> done 2 repeated 1
        lease 1 request=r -> LEASE_ENDED
        lease 1 request=s -> none
        lease 1 request=s -> none
    """,
    "the same lease request twice in one entry": """
        configure
        produce 5 -> 1-5
        lease 2 2 request=r -> 1-2 | 1-2 repeated L1
        stats leased leases -> 2 1
    """,
    "retry later, counted": """
        configure
        produce 2 -> 1-2
        lease 1 -> 1
        retry L1 in=5000 -> done 1
        stats scheduled ready -> 1 1
        wait 4999
        lease 5 -> 2
        wait 1
        lease 5 -> 1x2
    """,
    "retry later, not counted": """
        configure max_attempts=1 dead=9
        produce 1 -> 1
        lease 1 -> 1
        retry L1 free in=5000 -> done 1
        stats scheduled retried released -> 1 1 0
        wait 5000
        lease 1 -> 1
    """,
    "less than 100 ms ahead is now": """
        configure
        produce 1 in=99 -> 1
        produce 1 in=100 -> 2
        lease 5 -> 1
        retry L1 in=99 -> done 1
        lease 5 -> 1x2
        stats scheduled -> 1
        produce 1 in=-5000 -> 3
        lease 1 -> 3
    """,
    "scheduled items become ready in order of time, then sequence": """
        configure
        produce 1 in=3000 -> 1
        produce 1 in=1000 -> 2
        produce 1 in=2000 -> 3
        produce 1 in=1000 -> 4
        wait 5000
        lease 9 -> 2 4 3 1
    """,
    "items that come due together keep their sequence": """
        configure
        produce 4 -> 1-4
        lease 4 -> 1-4
        retry L1 1 3 in=1000 -> done 1 3
        retry L1 2 4 in=1000 -> done 2 4
        wait 1000
        lease 2 -> 1-2x2
        lease 2 -> 3-4x2
    """,
    "the last attempt stays with its consumer; then it dies": """
        configure max_attempts=2 dead=9
        produce 1 -> 1
        lease 1 -> 1
        wait 30000
        lease 1 -> 1x2
        wait 29999
        stats leased -> 1
        wait 1
        stats leased moving dead lapsed -> 0 1 1 2
        outbox 9 -> from 1: 1/1x2
    """,
    "a lower max_attempts applies to items already there": """
        configure max_attempts=5
        produce 2 -> 1-2
        lease 2 -> 1-2
        retry L1 -> done 1-2
        lease 1 -> 1x2
        configure max_attempts=1
        lease 1 -> none
        retry L2 -> done 1
        stats dead dropped -> 2 2
    """,
    "retry with dead: rejected, with the consumer's words": """
        configure dead=9
        produce 3 -> 1-3
        lease 3 -> 1-3
        retry L1 1 dead error=broken -> done 1
        retry L1 1 dead -> repeated 1
        retry L1 2 error=slow -> done 2
        lease 1 -> 2x2
        retry L2 dead error=broken -> done 2
        outbox 9 -> from 1: 1/3x1broken 2/3x2slowbroken
        stats moving dead dropped -> 2 2 0
    """,
    "failed items wait longer and longer, up to the longest wait": """
        configure retry=exponential,1000,3000
        produce 1 -> 1
        lease 1 -> 1
        retry L1 -> done 1
        due -> 1000: 1
        wait 1000
        lease 1 -> 1x2
        retry L2 -> done 1
        due -> 2000: 1
        wait 2000
        lease 1 -> 1x3
        retry L3 -> done 1
        due -> 3000: 1
        stats retried scheduled -> 3 1
    """,
    "linear and fixed waits": """
        configure retry=linear,1000,60000
        produce 2 -> 1-2
        lease 2 -> 1-2
        retry L1 -> done 1-2
        wait 1000
        lease 2 -> 1-2x2
        retry L2 1 -> done 1
        due -> 2000: 1
        configure retry=fixed,500,60000
        retry L2 2 -> done 2
        due -> 500: 2 2000: 1
    """,
    "a retry that says a time, a release and a reject do not wait": """
        configure retry=fixed,60000,60000 dead=9
        produce 4 -> 1-4
        lease 4 -> 1-4
        retry L1 1 in=5000 -> done 1
        due -> 5000: 1
        retry L1 2 free -> done 2
        retry L1 3 dead -> done 3
        retry L1 4 in=50 -> done 4
        stats ready scheduled moving -> 2 1 1
    """,
    "a lapsed lease is a failed attempt": """
        configure retry=fixed,5000,60000 max_attempts=2
        produce 1 -> 1
        lease 1 timeout=1000 -> 1
        wait 1000
        stats ready scheduled lapsed -> 0 1 1
        wait 5000
        lease 1 timeout=1000 -> 1x2
        wait 1000
        stats ready scheduled dead -> 0 0 1
    """,
    "dead targets take effect at once": """
        configure
        produce 3 -> 1-3
        lease 3 -> 1-3
        retry L1 1 dead -> done 1
        configure dead=9
        retry L1 2 dead -> done 2
        configure dead=-
        retry L1 3 dead -> done 3
        stats dead dropped moving -> 3 2 1
    """,
    "items expire where they wait, and a lease is not cut short": """
        configure expire_timeout_ms=10000 dead=9
        produce 3 -> 1-3
        lease 1 timeout=60000 -> 1
        wait 11000
        stats ready leased moving expired -> 0 1 2 2
        complete L1 -> done 1
        outbox 9 -> from 1: 2/2x0 3/2x0
    """,
    "an expired item that comes back from its lease dies": """
        configure expire_timeout_ms=10000
        produce 2 -> 1-2
        lease 2 timeout=60000 -> 1-2
        wait 20000
        retry L1 1 free -> done 1
        stats expired dropped leased -> 1 1 1
        retry L1 -> done 2
        stats expired dropped -> 2 2
    """,
    "an item's own expiry shortens the queue's, and counts from enqueue_at": """
        configure expire_timeout_ms=10000
        produce 1 expire=2000 -> 1
        produce 1 expire=90000 -> 2
        produce 1 in=20000 expire=5000 -> 3
        wait 3000
        stats ready scheduled expired -> 1 1 1
        wait 8000
        stats ready scheduled expired -> 0 1 2
        wait 9000
        lease 5 -> 3
        retry L1 in=60000 -> done 3
        wait 6000
        stats scheduled expired -> 0 3
    """,
    "a repeated produce gets its first answer": """
        configure
        produce 3 producer=p seq=1 -> 1-3
        produce 3 producer=p seq=1 -> 1-3 repeated
        produce 2 producer=p seq=2 -> 7-8
        produce 2 producer=q seq=1 -> 9-10
        produce 3 producer=p seq=1 -> 1-3 repeated
        stats ready produced duplicates -> 7 7 6
    """,
    "an ordered producer may not skip": """
        configure
        produce 1 producer=p seq=2 ordered -> SEQUENCE_GAP 1
        produce 1 producer=p seq=1 ordered -> 2
        produce 1 producer=p seq=3 ordered -> SEQUENCE_GAP 2
        produce 1 producer=p seq=1 ordered -> 2 repeated
        produce 1 producer=p seq=2 ordered -> 5
    """,
    "an unordered producer may overtake itself": """
        configure
        produce 1 producer=p seq=5 -> 1
        produce 1 producer=p seq=4 -> 2
        produce 1 producer=p seq=4 -> 2 repeated
    """,
    "a refused produce is not remembered": """
        configure items_max=2
        produce 3 producer=p seq=1 ordered -> QUEUE_FULL
        produce 2 producer=p seq=1 ordered -> 4-5
        produce 1 producer=p seq=2 ordered -> QUEUE_FULL
        lease 1 -> 4
        complete L1 -> done 4
        produce 1 producer=p seq=2 ordered -> 7
    """,
    "forgotten outcomes are never applied again": """
        configure dedup_window_ms=60000
        produce 1 producer=p seq=1 -> 1
        wait 200000
        produce 1 producer=p seq=1 -> PRODUCER_EXPIRED
        produce 1 producer=p seq=2 -> 3
        produce 1 producer=old seq=1 age=700000000 -> PRODUCER_EXPIRED
    """,
    "a silent producer is forgotten, and then refused by its age": """
        configure dedup_window_ms=60000
        produce 1 producer=p seq=1 -> 1
        wait 100000
        wait 604800000
        wait 100000
        produce 1 producer=p seq=2 -> PRODUCER_EXPIRED
    """,
    "dedup keys: in a batch, across batches, until the window ends": """
        configure dedup_window_ms=60000
        produce 3 keys=a,b,a -> 1-3 2:1
        produce 2 keys=b,c -> 4-5 0:2
        stats ready duplicates produced -> 3 2 3
        lease 9 -> 1-2 5
        complete L1 -> done 1-2 5
        produce 1 keys=a -> 6 0:1
        wait 60000
        produce 1 keys=a -> 7
        produce 1 keys=a -> 8 0:7
    """,
    "no dedup window, no dedup": """
        configure dedup_window_ms=0
        produce 2 keys=a,a -> 1-2
        lease 9 -> 1-2
    """,
    "max_bytes: what fits, and an item that never fits": """
        configure
        produce 12 -> 1-12
        lease 9 bytes=5 -> 1-5
        lease 9 bytes=1 -> 6
        lease 6 bytes=6 -> 7-11
        lease 6 bytes=1 -> ITEM_TOO_LARGE 2 bytes
        lease 6 -> 12
    """,
    "a hundred polite releases count as one attempt": """
        configure max_attempts=2
        produce 2 -> 1-2
    """
    + "\n".join(f"lease 1 -> 1\nretry L{n} free -> done 1" for n in range(1, 101))
    + """
        lease 1 -> 2
        lease 1 -> 1x2
        stats released -> 100
    """,
    "polite releases alone never make an item die": """
        configure max_attempts=1
        produce 2 -> 1-2
    """
    + "\n".join(f"lease 1 -> 1\nretry L{n} free -> done 1" for n in range(1, 202))
    + """
        stats ready released dead dropped -> 2 201 0 0
        lease 1 -> 1
        retry L202 -> done 1
        stats ready released dead dropped -> 1 201 1 1
    """,
    "polite releases leave the last attempt": """
        configure max_attempts=2 dead=9
        produce 1 -> 1
    """
    + "\n".join(f"lease 1 -> 1\nretry L{n} free -> done 1" for n in range(1, 101))
    + "\n"
    + "\n".join(f"lease 1 -> 1x2\nretry L{n} free -> done 1" for n in range(101, 211))
    + """
        stats ready moving -> 1 0
        lease 1 -> 1x2
        wait 30000
        stats ready moving -> 0 1
    """,
    "many schedules all fire, also when time jumps": """
        configure
        produce 2 in=1000 -> 1-2
        produce 2 in=86400000 -> 3-4
        produce 2 in=500 -> 5-6
        wait 900000000
        lease 9 -> 5-6 1-2 3-4
    """,
    "scheduled items are moved to another time": """
        configure
        produce 4 in=5000 -> 1-4
        move 2-3 in=9000 -> 2
        due -> 5000: 1 4 9000: 2-3
        wait 5000
        lease 9 -> 1 4
        wait 3999
        lease 9 -> none
        wait 1
        lease 9 -> 2-3
        stats ready leased scheduled cancelled -> 0 4 0 0
    """,
    "a repeated move changes nothing": """
        configure
        produce 2 in=5000 -> 1-2
        move 1-2 in=9000 -> 2
        move 1-2 in=9000 -> 0
        due -> 9000: 1-2
    """,
    "items that are moved together become ready in the order of their sequences": """
        configure
        produce 6 in=5000 -> 1-6
        move 5 in=9000 -> 1
        move 1 in=9000 -> 1
        move 3-4 in=9000 -> 2
        wait 9000
        lease 9 -> 2 6 1 3-5
    """,
    "less than 100 ms ahead is now, and the past as well": """
        configure
        produce 3 in=5000 -> 1-3
        move 1 in=100 -> 1
        move 2 in=99 -> 1
        move 3 in=-5000 -> 1
        due -> 100: 1
        lease 9 -> 2 3
    """,
    "items that run now are ready in the order of their due times": """
        configure
        produce 2 in=9000 -> 1-2
        produce 2 in=5000 -> 3-4
        run 1-4 -> 4
        lease 9 -> 3-4 1-2
        run 1 -> 0 missing 1
    """,
    "cancelled items are gone and counted": """
        configure
        produce 3 in=5000 -> 1-3
        cancel 1-2 -> 2
        cancel 1-3 -> 1 missing 1-2
        stats scheduled cancelled dead dropped bytes -> 0 3 0 0 0
        wait 5000
        lease 9 -> none
    """,
    "a cancelled item is no dead letter": """
        configure dead=9
        produce 1 in=5000 -> 1
        cancel 1 -> 1
        stats moving dead cancelled -> 0 0 1
        outbox 9 -> none
    """,
    "the dedup key of a cancelled item is remembered like that of a completed one": """
        configure dedup_window_ms=60000
        produce 1 in=5000 keys=a -> 1
        cancel 1 -> 1
        produce 1 keys=a -> 2 0:1
        wait 180000
        produce 1 keys=a -> 3
    """,
    "only scheduled items are changed": """
        configure max_attempts=3
        produce 3 -> 1-3
        lease 1 -> 1
        produce 1 in=5000 -> 4
        cancel 1-5 -> 1 missing 1-3 5
        run 2 -> 0 missing 2
        move 3 in=5000 -> 0 missing 3
        lease 9 -> 2-3
    """,
    "items in a batch of a reader are not scheduled": """
        configure
        produce 2 -> 1-2
        open lake -> 1
        advance lake 1 0 10 -> 1: 1-2
        cancel 1-2 -> 0 missing 1-2
        advance lake 1 1 10 -> none
        stats acknowledged cancelled -> 2 0
    """,
    "retried items are scheduled, and keep their attempts": """
        configure
        produce 2 -> 1-2
        lease 2 -> 1-2
        retry L1 in=5000 error=slow -> done 1-2
        move 1 in=9000 -> 1
        run 2 -> 1
        lease 9 -> 2x2
        wait 9000
        lease 9 -> 1x2
    """,
    "retried items of different attempts come due together in order": """
        configure
        produce 4 -> 1-4
        lease 2 -> 1-2
        retry L1 2 in=5000 -> done 2
        lease 2 -> 3-4
        retry L2 3 -> done 3
        lease 1 -> 3x2
        retry L3 in=6000 -> done 3
        retry L1 1 in=7000 -> done 1
        move 1-3 in=8000 -> 3
        wait 8000
        lease 9 -> 1-2x2 3x3
    """,
    "a span of due times leaves others as they are": """
        configure
        produce 1 in=1000 -> 1
        produce 1 in=2000 -> 2
        produce 1 in=3000 -> 3
        cancel 1-3 from=2000 until=3000 -> 1 missing 1 3
        move 1-3 from=1001 in=4000 -> 1 missing 1-2
        due -> 1000: 1 4000: 3
    """,
    "an expiry counts from the new due time": """
        configure
        produce 2 in=5000 expire=2000 -> 1-2
        move 1 in=60000 -> 1
        wait 8000
        stats scheduled expired -> 1 1
        wait 52000
        lease 9 -> 1
        stats expired -> 1
    """,
    "an expiry of the queue counts from the new due time": """
        configure expire_timeout_ms=10000
        produce 3 in=20000 -> 1-3
        produce 1 -> 4
        lease 1 -> 4
        retry L1 in=5000 -> done 4
        move 1 4 in=60000 -> 2
        run 2 -> 1
        wait 9000
        stats ready scheduled expired -> 1 3 0
        wait 2000
        stats ready scheduled expired -> 0 3 1
        wait 48000
        stats ready scheduled expired -> 0 2 2
        wait 1000
        lease 9 -> 1 4x2
    """,
    "what has expired is not rescheduled": """
        configure
        produce 1 expire=1000 -> 1
        lease 1 -> 1
        retry L1 in=9000 -> done 1
        wait 2000
        run 1 -> 0 missing 1
        cancel 1 -> 0 missing 1
        stats expired cancelled -> 1 0
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    run(SCENARIOS[name])
