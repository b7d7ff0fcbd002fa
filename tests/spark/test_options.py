"""Options are taken in or refused, with the way out."""

import pytest

from querator.spark.options import OptionError, Target, browse_options

LEAST = {"endpoint": "h:1", "queue": "q"}


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
        ({"endpoint": "h:1,"}, ["option endpoint", "host:port"]),
        ({"includevalue": "yes"}, ["includeValue", "'yes'", "true or false"]),
        ({"states": "ready,gone"}, ["'gone'", "ready, leased, scheduled, moving"]),
        ({"minpartitions": "0"}, ["minPartitions", "'0'", "from 1 to 10000"]),
        ({"minpartitions": "many"}, ["minPartitions", "'many'"]),
        ({"retrytimeout": "0.5"}, ["retryTimeout", "seconds"]),
        ({"retrytimeout": "nan"}, ["retryTimeout", "'nan'"]),
        ({"startingtimestamp": "yesterday"}, ["startingTimestamp", "'yesterday'", "zone"]),
        ({"endingtimestamp": "2026-03-01T00:00:00"}, ["endingTimestamp", "zone"]),
        ({"startingtimestamp": "5", "endingtimestamp": "5"}, ["before endingTimestamp"]),
        ({"tlscertfile": "cert"}, ["tlsCertFile and tlsKeyFile go together"]),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(changes, words):
    with pytest.raises(OptionError) as caught:
        browse_options({**LEAST, **changes})
    for word in words:
        assert word in str(caught.value)
