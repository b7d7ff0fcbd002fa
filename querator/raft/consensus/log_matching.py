"""What a follower does with a leader's entries (Ongaro, section 3.5).

An entry takes the place of another one only when their terms differ: messages may be late, and what
was acknowledged must never be taken back because an older message says less. What is committed here
is never replaced: a leader that wants to has lost its log, or this replica has.
"""

from querator.raft.log.journal import Journal, Snapshots
from querator.raft.messages import Append


class Diverged(Exception):
    """A leader contradicts what is committed here: one of the two has lost its log."""


def place(journal: Journal, message: Append, commit_index: int) -> tuple[int, int] | None:
    """Whether the entries can follow in the log: None, or where to look for agreement, as
    `AppendReply` says it. Raises Diverged.
    """
    previous = message.prev_index
    if previous > journal.last_index:
        return journal.last_index + 1, 0
    if previous < journal.first_index - 1:
        # What the log let go of is applied: it is the same.
        return None
    term = journal.term_at(previous)
    if term == message.prev_term:
        return None
    if previous <= commit_index:
        raise Diverged(
            f"entry {previous} is committed in term {term}, and the leader of term {message.term} "
            f"has it in term {message.prev_term}"
        )
    return journal.first_of_term(previous), term


def take(journal: Journal, snapshots: Snapshots, message: Append, commit_index: int) -> None:
    """Puts the entries into the log, but for those that it has. Raises Diverged, StorageCorrupt."""
    index = message.prev_index
    for entry in message.entries:
        index += 1
        if index <= journal.last_index:
            if index < journal.first_index or journal.term_at(index) == entry.term:
                continue
            if index <= commit_index:
                raise Diverged(
                    f"entry {index} is committed, and the leader of term {message.term} has "
                    "another one in its place"
                )
            journal.take_back(snapshots, index - 1)
        journal.take(entry)
