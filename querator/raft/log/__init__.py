"""The log of a group on disk: its rows, how much of it is kept, and the space that writes may use.

Tables and attachments themselves are in `storage`.

    journal         log, term and vote of one group
    rows            encoding of these rows
    window          how much of their logs the groups of a node keep
    disk_budget     whether the free disk space is enough for a write
"""
