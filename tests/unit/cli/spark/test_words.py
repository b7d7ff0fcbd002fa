"""Messages of the data source name the options of the running command."""

import click
import pytest

from querator.cli import querator
from querator.cli.spark.words import as_typed, sentence


def said(command: str, words: str, *arguments: str) -> str:
    """The words as the command shows them."""
    root = click.Context(querator, **querator.context_settings)
    group = querator.get_command(root, "spark")
    assert isinstance(group, click.Group)
    found = group.get_command(root, command)
    assert found is not None
    # Commands keep the names of their help option: they come from the root.
    with found.make_context(command, list(arguments), parent=root):
        return sentence(as_typed(words))


INGEST = ("in", "q", "--format", "csv", "--key", "id", "--value", "x")
COPY = ("a", "b", "--reader-id", "r", "--checkpoint", "c")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("column key = id: there is no column id; did you mean i?",
         "--key id: there is no column id; did you mean i?"),
        ("column key is int: it must be string", "--key is int: it must be string."),
        ("column kind is int: it must be string", "Column kind is int: it must be string."),
        ("column value has 9 bytes in row 0 of this task: the payload of an item has 3 at most. "
         'Store it, or .where("octet_length(value) <= 3"); .option("oversizePolicy", "skip") '
         "leaves such rows out, and the driver logs their number",
         "--value has 9 bytes in row 0 of this task: the payload of an item has 3 at most. "
         'Store it, or --where "octet_length(value) <= 3".'),
        ("column key is int: it must be string; column value = x: there is no column x",
         "--key is int: it must be string; --value x: there is no column x."),
        ("format is csv: give another", "--format is csv: give another."),
        ("path is in: there is nothing", "PATH is in: there is nothing."),
        ("make nulls by option mode=PERMISSIVE", "Make nulls by --option mode=PERMISSIVE."),
        ("check the options queue, namespace and endpoint",
         "Check QUEUE, --namespace and --address."),
        ("at least to one address of option endpoint; with TLS, options tlsCaFile, tlsCertFile and "
         "tlsKeyFile name files",
         "At least to one address of --address; with TLS, --tls-ca, --tls-cert and --tls-key name "
         "files."),
        ("partition 0 did not answer for 60 s (option retryTimeout): items wait",
         "Partition 0 did not answer for 60 s (--request-timeout): items wait."),
        ("setting spark.x is 'a': it must be int", "--conf spark.x is 'a': it must be int."),
        ("the columns are id, key", "The columns are id, key."),
    ],
)  # fmt: skip
def test_an_ingest_speaks_of_its_own_options(words: str, shown: str) -> None:
    assert said("ingest", words, *INGEST) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ('continue with .option("onCheckpointMismatch", "adopt"); or read under another readerId',
         "Continue with --adopt; or read under another --reader-id."),
        ('.option("failOnDataLoss", "false"); for a pipeline --skip-released', "--skip-released."),
        ("begin with a new checkpointLocation", "Begin with a new --checkpoint."),
        ("option maxItemsPerTrigger is '0'", "--max-items is '0'."),
        ("checkpoint c is of another archive", "--checkpoint c is of another archive."),
    ],
)  # fmt: skip
def test_a_copy_speaks_of_its_own_options(words: str, shown: str) -> None:
    assert said("copy", words, *COPY) == shown


def test_the_words_of_a_program_stay() -> None:
    assert as_typed("option readerId is missing") == "option readerId is missing"
