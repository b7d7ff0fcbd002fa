"""The log of a group on disk: rows, how much of it is kept, and the space that writes may use."""
