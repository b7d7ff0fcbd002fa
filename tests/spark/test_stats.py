"""`stats`: the items of a queue, counted by Spark, as a page that opens anywhere."""

import base64
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import msgspec
import pytest

from querator import SyncClient
from querator.client import Item
from querator.client.errors import NotFound
from querator.spark.options import OptionError, browse_options
from querator.spark.pipelines.counting import DUE_EDGES_S, KINDS_SHOWN, find_problems, stats
from querator.spark.pipelines.counting_page import stats_page
from querator.spark.pipelines.scans import StateHistogram
from querator.spark.pipelines.settings import QueuePlace, StatsSettings
from querator.spark.report.page import render
from querator.spark.rpc import cluster
from tests.spark.test_write import create

SOON = timedelta(seconds=10)
HOUR = timedelta(hours=1)
FOREIGN = "<script>$x^2$\x1b注文</script>"


def test_all_that_is_there_is_counted_by_state_kind_and_partition(spark, node, tmp_path):
    dead = create(node, "counted-dead")
    create(
        node, "counted", partitions=2, lease_timeout=HOUR, max_attempts=1, dead_queue="counted-dead"
    )
    later = datetime.now(UTC) + HOUR
    items = [
        *(Item(b"x" * 2_000, kind=FOREIGN, key=f"k{number}") for number in range(60)),
        *(Item(b"y" * 10, kind="late", enqueue_at=later) for _ in range(30)),
        *(Item(b"", kind=f"rare-{number}") for number in range(KINDS_SHOWN)),
        Item(b"z"),
    ]
    with SyncClient(node.endpoint) as client:
        client.produce("counted", *items)
        leased = [
            item for _ in range(2) for item in client.lease("counted", max_items=5, wait=SOON)
        ]
        client.complete("counted", leased[0])
        client.retry("counted", leased[1], error="once is enough")
        while client.stats("counted-dead").total.ready == 0:
            pass

    scan = stats(spark, StatsSettings(QueuePlace(node.endpoint, "counted")))
    total, held = len(items) - 2, len(leased) - 2
    assert scan.problems == ()
    assert scan.stood_still
    assert scan.rows == total
    assert scan.told == {
        **dict.fromkeys(("moving", "reserved", "held"), 0),
        **{"ready": total - 30 - held, "leased": held, "scheduled": 30},
    }
    assert {state: group.items for state, group in scan.states.items()} == {
        state: count for state, count in scan.told.items() if count
    }
    gone = Counter(item.kind for item in leased[:2])
    assert scan.kinds["late"].items == 30
    assert scan.kinds["late"].payload_bytes == 300
    assert scan.kinds[FOREIGN].items == 60 - gone[FOREIGN]
    assert scan.kinds[FOREIGN].payload_bytes_max == 2_000
    assert len(scan.kinds) == KINDS_SHOWN
    assert scan.other_kinds is not None
    assert scan.other_kinds.items + sum(group.items for group in scan.kinds.values()) == total
    assert set(scan.partitions) == {0, 1}
    assert scan.states["leased"].attempts_max == 1
    assert scan.attempts.items["leased"][1] == held
    assert scan.sizes is not None
    assert scan.sizes.items["scheduled"][1] == 30
    assert scan.dues == StateHistogram(DUE_EDGES_S, {"scheduled": (0, 0, 30, 0, 0, 0, 0, 0)})
    assert 0 <= scan.states["ready"].age_s_p50 <= scan.states["ready"].age_s_max < 600

    died = stats(spark, StatsSettings(QueuePlace(node.endpoint, "counted-dead"), sizes=False))
    assert (died.problems, died.dead_letters) == ((), {"attempts": 1})
    assert (died.sizes, died.dues) == (None, None)
    assert dead["queue"] == died.queue
    assert msgspec.json.decode(msgspec.json.encode(died), type=type(died)) == died

    html = render(stats_page([scan, died]))
    for each in (scan, died):
        assert f"{each.scanned_at:%Y-%m-%d %H:%M:%S} UTC" in html
    assert "<script" not in html
    assert html.count("<section>") == 2
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert len(pictures) == 6 + 4
    assert "Due times of scheduled items" in html
    texts = set()
    for picture in pictures:
        texts |= set(ElementTree.fromstring(base64.b64decode(picture)).itertext())
    assert "<script>$x^2$注文</script>" in texts
    assert not re.search(r'(src|href)="(?!data:)', html)


def test_sums_that_do_not_balance_are_named(spark, node):
    options = create(node, "unbalanced")
    with SyncClient(node.endpoint) as client:
        client.produce("unbalanced", b"a", b"b")
    scan = stats(spark, StatsSettings(QueuePlace(node.endpoint, "unbalanced")))
    assert scan.problems == ()
    told = cluster(browse_options(options).target).stats("", "unbalanced", retry_seconds=5)
    assert find_problems(scan, told) == []
    more = msgspec.structs.replace(scan, rows=3, kinds={})
    assert find_problems(more, told)[:2] == [
        "unbalanced: 3 rows were scanned, but the sum over states is 2",
        "unbalanced: 3 rows were scanned, but the sum over kinds is 0",
    ]
    late = msgspec.structs.replace(
        scan, dues=msgspec.structs.replace(scan.ages, items={"scheduled": (1,)})
    )
    assert find_problems(late, told) == [
        "unbalanced: 0 scheduled rows were scanned, but the sum over due times is 1"
    ]
    less = msgspec.structs.replace(scan, states_of_partitions={0: {"ready": 1, "leased": 1}})
    assert find_problems(less, told) == [
        "unbalanced: partition 0 reports 2 items ready, and 1 were found",
        "unbalanced: partition 0 reports 0 items leased, and 1 were found",
    ]
    moving = msgspec.structs.replace(less, stood_still=False)
    assert find_problems(moving, told) == []
    assert "does not balance" not in render(stats_page([scan]))
    wrong = msgspec.structs.replace(scan, problems=("2 items are lost",))
    assert "2 items are lost" in render(stats_page([wrong]))


def test_an_empty_queue_has_nothing_to_draw(spark, node):
    create(node, "nothing_to_draw", partitions=2)
    scan = stats(spark, StatsSettings(QueuePlace(node.endpoint, "nothing_to_draw")))
    assert (scan.rows, scan.problems, scan.states, scan.kinds) == (0, (), {}, {})
    assert "<img" not in render(stats_page([scan]))


def test_what_is_not_there_is_said_before_anything_is_read(spark, node):
    with pytest.raises(NotFound, match="no-such-queue"):
        stats(spark, StatsSettings(QueuePlace(node.endpoint, "no-such-queue")))
    with pytest.raises(OptionError, match="endpoint"):
        stats(spark, StatsSettings(QueuePlace("", "counted")))
