"""Options, output and errors that commands share. Code of a single command belongs into the
command's own module, or here if it is about input and output.

    connection      options of the server, and the client of a command
    confirmation    questions before a command that cannot be undone
    cells           widths of texts in a terminal
    failures        exit codes, and errors as one line
    feed            values of a blocking iterator, for the event loop
    help            help texts that fit a narrow terminal
    item_command    the shell command of `consume`, run for one item
    item_template   the item that options describe, and what it says about retries
    item_results    results of items, as text
    item_printer    items that `consume` prints
    listing         lists of items that are written while their pages come
    output          tables, JSON and notes
    parameters      durations, instants, numbers, ids and attributes as click types
    refused_lines   refused lines of an input, each reason once
    similar_queues  names that are similar to that of a missing queue
    sources         input of `produce`: files, lines, JSON lines, CSV
    tables          tables that fit the terminal
    texts           values as text
    views           structs that `--output json` prints
    wording         errors of the server in the words of the command line
"""
