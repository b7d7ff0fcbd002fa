"""Errors of the server in the words of the command line."""

import click
import pytest
from click.testing import CliRunner

from querator.cli.shared.parameters import DELAY
from querator.cli.shared.wording import in_words
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.wire.field_checks import under_limit

AHEAD = over_limit(
    "items[0].enqueue_at", value=345_599_999_996, limit=315_360_000_000, unit="ms ahead"
)


def words(error: QueratorError, *arguments: str, of_option: bool = True) -> str:
    """The words of a command that was given these arguments."""

    @click.command()
    @click.argument("queue")
    @click.option("--lease-timeout")
    @click.option("--delay", type=DELAY)
    @click.option("--at", "enqueue_at")
    @click.option("--attribute", "attributes", multiple=True)
    def command(**_: object) -> None:
        click.echo(in_words(error, of_option=of_option))

    outcome = CliRunner().invoke(command, ["mail", *arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output.removesuffix("\n")


def test_an_option_is_named_as_it_was_typed_and_durations_have_units() -> None:
    error = over_limit("settings.lease_timeout", value=8_640_000_000, limit=86_400_000, unit="ms")
    assert words(error, "--lease-timeout", "100d") == "--lease-timeout is 100d; at most 24h"
    assert words(error) == "lease_timeout is 100d; at most 24h"
    short = under_limit("settings.lease_timeout", value=10, limit=1_000, unit="ms")
    assert words(short, "--lease-timeout", "10ms") == "--lease-timeout is 10ms; at least 1s"


def test_an_instant_is_that_of_the_option_that_set_it() -> None:
    assert words(AHEAD, "--delay", "3000d") == "--delay is 3000d; at most 10 years"
    assert words(AHEAD, "--at", "2099-01-01") == "--at is 4000d ahead; at most 10 years"
    assert (
        words(AHEAD, "--at", "x", of_option=False) == "enqueue_at is 4000d ahead; at most 10 years"
    )


def test_a_field_of_the_input_has_its_name_there() -> None:
    assert in_words(AHEAD, of_option=False, name="delay") == "delay is 4000d; at most 10 years"


def test_numbers_have_separators() -> None:
    error = over_limit("items[3].payload", value=1_048_577, limit=1_048_576, unit="bytes")
    assert words(error) == "payload is 1,048,577 bytes; at most 1,048,576"
    assert words(over_limit("items[3].attributes", value=70, limit=64), "--attribute", "a") == (
        "--attribute is 70; at most 64"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (invalid("queue", "mail has no dead queue"), "queue mail has no dead queue"),
        (invalid("settings.replicas", "must be 0, 1, 3 or 5"), "replicas must be 0, 1, 3 or 5"),
        (
            QueratorError(ErrorCode.LIMIT_EXCEEDED, "too much", field="a", limit="x", value="y"),
            "too much",
        ),
    ],
)
def test_other_messages_stay(error: QueratorError, said: str) -> None:
    assert words(error) == said
