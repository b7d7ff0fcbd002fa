"""Options, output and errors that commands share. Code of a single command belongs into the
command's own module, or here if it is about input and output.

    connection      options of the server, and the client of a command
    failures        exit codes, and errors as one line
    feed            values of a blocking iterator, for the event loop
    item_command    the shell command of `consume`, run for one item
    output          tables, JSON and notes
    parameters      durations, instants, item ids and attributes as click types
    sources         input of `produce`: lines, JSON lines, CSV
    views           structs that `--output json` prints
"""
