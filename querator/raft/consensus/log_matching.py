"""How a follower checks and stores a leader's entries (Ongaro, section 3.5).

An entry replaces another one only when their terms differ. Messages may be late, and an older
message with fewer entries must never remove acknowledged ones. Entries that are committed here are
never replaced: a leader that wants to replace them has lost its log, or this replica has.
"""

from querator.raft.log.journal import Journal, Snapshots
from querator.raft.messages import Append


class Diverged(Exception):
    """A leader contradicts an entry that is committed here: one of the two has lost its log."""


def check_previous(journal: Journal, message: Append, commit_index: int) -> tuple[int, int] | None:
    """Checks whether the entries can follow in the log. Returns None if they can, else where to
    look for agreement, as in `AppendReply`. Raises Diverged.
    """
    previous = message.prev_index
    if previous > journal.last_index:
        return journal.last_index + 1, 0
    if previous < journal.first_index - 1:
        # Entries that the log has dropped are applied, and therefore equal.
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


def append_entries(
    journal: Journal, snapshots: Snapshots, message: Append, commit_index: int
) -> None:
    """Appends the entries that the log does not have. Raises Diverged, StorageCorrupt."""
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
        journal.append_as_leader(entry)
