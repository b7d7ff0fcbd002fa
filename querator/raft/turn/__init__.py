"""The raft thread, and what it does for all groups of the node in one turn."""
