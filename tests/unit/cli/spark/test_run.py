"""Final summaries of the commands of `querator spark`."""

import click
import msgspec
import pytest

from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.spark.run import PACKAGES, Engine, conclude, failures
from querator.client.errors import ErrorCode, make_error
from querator.spark.pipelines.summary import Count, RedriveSummary, Summary

RIGHT = Summary(
    pipeline="copy",
    taken=Count(5_000, "items taken"),
    made=Count(4_000, "items committed"),
    left_out=1_000,
    batches=3,
    seconds=2.0,
)
WRONG = msgspec.structs.replace(RIGHT, made=Count(3_999, "items committed"))


def test_a_summary_that_balances_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    conclude(RIGHT, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["items", "taken", "5,000"] in lines
    assert ["a", "second", "2,500"] in lines
    assert ["balanced", "yes"] in lines


@pytest.mark.parametrize("as_json", [True, False])
def test_one_that_does_not_balance_fails_the_command(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    with pytest.raises(Failure) as caught:
        conclude(WRONG, as_json=as_json)
    assert caught.value.exit_code == ExitCode.WRONG
    assert caught.value.message == (
        "It does not balance: 5,000 items taken, 1,000 left out, and 3,999 items committed."
    )
    printed = capsys.readouterr().out
    if as_json:
        document = msgspec.json.decode(printed)
        assert document["balanced"] is False
        assert document["made"] == {"value": 3_999, "words": "items committed"}
    else:
        assert printed.splitlines()[-1].split() == ["balanced", "no"]


def test_an_error_of_the_cluster_names_the_options_of_the_command() -> None:
    words = (
        "there is no queue q; nothing was written. Check the options queue, namespace and endpoint"
    )
    queue = click.Argument(["queue"])
    options = (click.Option(["--address"]), click.Option(["--namespace"]))
    command = click.Command("ingest", params=[queue, *options])
    with click.Context(command), pytest.raises(Failure) as caught, failures():
        raise make_error(ErrorCode.QUEUE_NOT_FOUND, words)
    assert "Check QUEUE, --namespace and --address (QUEUE_NOT_FOUND)." in caught.value.message


def test_a_dry_run_says_what_would_be_sent_back(capsys: pytest.CaptureFixture[str]) -> None:
    dry = RedriveSummary(
        pipeline="redrive",
        taken=Count(4, "dead letters found"),
        made=Count(0, "sent back"),
        left_out=1,
        batches=0,
        seconds=0.0,
        would_be_sent=3,
    )
    conclude(dry, as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"would be sent back 3", "left out 1", "balanced yes"} <= set(lines)


def test_more_than_was_taken_does_not_balance_either() -> None:
    assert not msgspec.structs.replace(RIGHT, left_out=999).balanced
    assert msgspec.structs.replace(RIGHT, left_out=1_001).missing == -1


def test_the_words_at_the_start_name_the_packages_that_are_downloaded() -> None:
    engine = Engine("local[*]", {PACKAGES: "org.apache.hadoop:hadoop-aws:3.5.0"}, False)
    assert engine.start_words() == (
        "Checking queues, then starting Spark on local[*] with org.apache.hadoop:hadoop-aws:3.5.0, "
        "which are downloaded the first time: half a minute without figures is usual."
    )
