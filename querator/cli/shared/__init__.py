"""Options, output and errors that commands share.

The modules and sub-packages:

    connection    options of a connection, and the client of a command
    failures      how a command fails: one line and an exit code
    feed          values of a blocking iterator, for the event loop
    item_command  runs a command for an item
    output        tables for people, JSON for machines
    parameters    click types of durations, instants, rates and pairs
    sources       where `produce` takes items from
    views         what `--output json` prints
"""
