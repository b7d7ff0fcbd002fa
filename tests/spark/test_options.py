"""Options are accepted or refused, with the way out."""

from importlib import metadata

import pytest

import querator.spark
from querator.spark.options import (
    OptionError,
    Target,
    browse_options,
    check_options,
    stream_options,
)
from querator.spark.requirements import check_requirements
from querator.spark.rpc import cluster
from querator.wire.tls import TlsError

LEAST = {"endpoint": "h:1", "queue": "q"}
STREAM = {**LEAST, "readerid": "lake"}


def test_the_least():
    options = browse_options(LEAST)
    assert options.target == Target(("h:1",))
    assert (options.namespace, options.queue, options.include_value) == ("", "q", True)
    assert (options.states, options.kinds, options.min_partitions) == ((), (), 1)
    assert (options.starting_us, options.ending_us) == (None, None)


def test_options_of_a_table_as_the_catalogue_hands_them_over():
    table = {f"option.{name}": value for name, value in LEAST.items()}
    assert browse_options({**table, "provider": "querator"}) == browse_options(LEAST)
    assert browse_options({**table, **LEAST}) == browse_options(LEAST)


def test_all_of_them_in_lower_case_as_spark_hands_them_over():
    options = browse_options(
        {
            "endpoint": "h:1, i:2",
            "namespace": "n",
            "queue": "q",
            "includevalue": "FALSE",
            "states": "ready, Leased",
            "kinds": "email,,sms",
            "startingtimestamp": "2026-03-01T00:00:00+01:00",
            "endingtimestamp": "1772323200001",
            "minpartitions": "7",
            "retrytimeout": "2.5",
            "tlscafile": "ca",
            "tlscertfile": "cert",
            "tlskeyfile": "key",
        }
    )
    assert options.target == Target(("h:1", "i:2"), "ca", "cert", "key")
    assert (options.namespace, options.include_value) == ("n", False)
    assert (options.states, options.kinds) == ((1, 2), ("email", "", "sms"))
    assert (options.starting_us, options.ending_us) == (1772319600_000_000, 1772323200_001_000)
    assert (options.min_partitions, options.retry_seconds) == (7, 2.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"endpont": "h:1"}, ["'endpont'", "did you mean endpoint?"]),
        ({"includevalues": "true"}, ["did you mean includeValue?"]),
        ({"zzz": "1"}, ["no option 'zzz'", "there are endpoint, namespace"]),
        ({"queue": ""}, ["option queue is missing"]),
        ({"endpoint": " "}, ["option endpoint is missing", "host:port"]),
        ({"endpoint": "h:1,"}, ["option endpoint: '' is not HOST:PORT"]),
        ({"endpoint": "h:1,localhost"}, ["option endpoint: 'localhost' is not HOST:PORT"]),
        ({"endpoint": "http://h/"}, ["option endpoint: 'http://h/' is a URL", "HOST:PORT"]),
        ({"includevalue": "yes"}, ["includeValue", "'yes'", "true or false"]),
        ({"states": "['ready']"}, ["states is ['ready'], a list", 'commas between, "ready"']),
        ({"kinds": "('a', 'b')"}, ["option kinds is ('a', 'b')", 'commas between, "a,b"']),
        ({"endpoint": "['h:1', 'i:2']"}, ["option endpoint is [", '"h:1,i:2"']),
        ({"queue": "['q']"}, ["option queue is ['q'], a list: give one text"]),
        ({"queue": "q,r"}, ["option queue is 'q,r': give one queue", "union"]),
        ({"states": "ready,gone"}, ["'gone'", "ready, leased, scheduled, moving"]),
        ({"minpartitions": "0"}, ["minPartitions", "'0'", "from 1 to 10000"]),
        ({"minpartitions": "many"}, ["minPartitions", "'many'"]),
        ({"retrytimeout": "0.5"}, ["retryTimeout", "seconds"]),
        ({"retrytimeout": "nan"}, ["retryTimeout", "'nan'"]),
        ({"startingtimestamp": "yesterday"}, ["startingTimestamp", "'yesterday'", "zone"]),
        ({"endingtimestamp": "2026-03-01T00:00:00"}, ["endingTimestamp", "zone"]),
        (
            {"startingtimestamp": "5", "endingtimestamp": "5"},
            ["startingTimestamp is '5': it must be before endingTimestamp, which is '5'"],
        ),
        (
            {"startingtimestamp": "1969-12-31T23:59:59Z"},
            ["startingTimestamp", "'1969", "from 1970"],
        ),
        ({"startingtimestamp": "253402300800000"}, ["startingTimestamp", "to 9999"]),
        ({"endingtimestamp": "9" * 30}, ["endingTimestamp", "'999", "to 9999"]),
        ({"endingtimestamp": "0"}, ["endingTimestamp is '0'", "after 1970"]),
        ({"tlscertfile": "cert"}, ["tlsCertFile and tlsKeyFile go together"]),
        ({"maxitemspertrigger": "5"}, ["maxItemsPerTrigger is for spark.readStream only"]),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(changes, words):
    with pytest.raises(OptionError) as caught:
        browse_options({**LEAST, **changes})
    for word in words:
        assert word in str(caught.value)


def test_files_of_tls_that_are_not_there_are_named_with_their_options():
    options = browse_options({**LEAST, "tlscafile": "/nowhere/ca.pem"})
    with pytest.raises(TlsError, match=r"/nowhere/ca\.pem: No such file.*options tlsCaFile"):
        cluster(options.target)


def test_the_least_of_a_stream():
    options = stream_options(STREAM)
    assert (options.target, options.queue, options.reader_id) == (Target(("h:1",)), "q", "lake")
    assert (options.max_items, options.max_bytes) == (50_000, 64 * 1024 * 1024)
    assert (options.min_partitions, options.poll_seconds, options.retry_seconds) == (1, 1.0, 60.0)
    assert (options.fail_on_data_loss, options.adopts, options.include_value) == (True, False, True)
    assert (options.max_replays, options.gives_up) == (0, False)


def test_all_options_of_a_stream():
    options = stream_options(
        {
            **STREAM,
            "namespace": "n",
            "includevalue": "false",
            "maxitemspertrigger": "7",
            "maxbytespertrigger": "1000",
            "minpartitions": "8",
            "polltimeout": "0.5",
            "failondataloss": "False",
            "oncheckpointmismatch": "Adopt",
            "maxbatchreplays": "4",
            "poisonpolicy": "DeadLetter",
            "retrytimeout": "3",
        }
    )
    assert (options.namespace, options.include_value, options.adopts) == ("n", False, True)
    assert (options.max_items, options.max_bytes, options.min_partitions) == (7, 1000, 8)
    assert (options.poll_seconds, options.retry_seconds) == (0.5, 3.0)
    assert not options.fail_on_data_loss
    assert (options.max_replays, options.gives_up) == (4, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"readerid": ""}, ["option readerId is missing", '.option("readerId", "…")']),
        ({"readerid": "['a', 'b']"}, ["readerId is ['a', 'b'], a list: give one text"]),
        ({"maxitemspertrigger": "1e5"}, ["maxItemsPerTrigger is '1e5': give a whole number from"]),
        ({"readerid": "x" * 129}, ["option readerId has 129 bytes: at most 128"]),
        ({"reader": "x"}, ["did you mean readerId"]),
        (
            {"startingoffsets": "earliest"},
            ["no option 'startingOffsets': a queue has no offsets: a stream takes what is there"],
        ),
        ({"subscribe": "orders"}, ["no option 'subscribe': give queue"]),
        ({"maxitemspertrigger": "0"}, ["maxItemsPerTrigger", "from 1 to 500000"]),
        ({"maxbytespertrigger": "2gb"}, ["maxBytesPerTrigger", "'2gb'", "from 1 to 1073741824"]),
        ({"polltimeout": "61"}, ["pollTimeout", "from 0 to 60 seconds"]),
        ({"failondataloss": "no"}, ["failOnDataLoss", "true or false"]),
        ({"oncheckpointmismatch": "ignore"}, ["onCheckpointMismatch", "fail or adopt"]),
        ({"maxbatchreplays": "0"}, ["maxBatchReplays", "from 1 to 1000"]),
        ({"maxbatchreplays": "3", "poisonpolicy": "drop"}, ["'drop'", "fail or deadLetter"]),
        ({"poisonpolicy": "deadLetter"}, ["poisonPolicy", "give maxBatchReplays, too"]),
        ({"kinds": "email"}, ["option kinds is for spark.read only", "use where(…)"]),
    ],
)
def test_what_is_wrong_with_a_stream_is_named_with_the_way_out(changes, words):
    with pytest.raises(OptionError) as caught:
        stream_options({**STREAM, **changes})
    for word in words:
        assert word in str(caught.value)


def test_options_are_checked_before_it_is_known_what_for():
    check_options(LEAST)
    check_options(STREAM)
    with pytest.raises(OptionError, match="states"):
        check_options({**LEAST, "states": "gone"})
    with pytest.raises(OptionError, match="readerId is missing"):
        check_options({**LEAST, "pollTimeout": "1"})


@pytest.mark.parametrize("version", ["4.1.4", "4.0.5", "3.5.1", "5.0.0"])
def test_a_pyspark_that_does_not_do_is_named(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(ImportError, match=r"needs PySpark 4\.2 or newer.*'querator\[spark\]'$"):
        check_requirements()
    # The import of the source reports this, instead of the name that PySpark lacks.
    with pytest.raises(ImportError, match=r"needs PySpark 4\.2 or newer"):
        _ = querator.spark.QueratorDataSource


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({}, r"pyspark is not installed.*/python\S* .*install .*'querator\[spark\]'$"),
        ({"pyspark": "4.3.0"}, "pyarrow is not installed"),
        ({"pyspark": "4.2.1", "pyarrow": "17.0.0"}, "needs PyArrow 18 or newer; this is 17.0"),
    ],
)
def test_what_is_not_installed_or_too_old_is_named(monkeypatch, versions: dict[str, str], words):
    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ImportError, match=words):
        check_requirements()


def test_versions_that_do(monkeypatch):
    versions = {"pyspark": "4.2.0", "pyarrow": "18.0.0"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    check_requirements()
