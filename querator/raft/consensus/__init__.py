"""One replica of a group: votes, entries, commits, and how far clocks are believed. No I/O."""
