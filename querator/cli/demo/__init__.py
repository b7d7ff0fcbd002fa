"""`querator demo`, and the modules that it shares with the demo on Spark.

    demo           the command: real data, real nodes and a kill
    demo_run       one run: all flights through one queue, and the counts
    flights        the input: flights of 2013, and a ledger of rows
    local_nodes    node processes on free ports and own directories
    measure        latencies, and progress bars

The demo on Spark is in `querator.cli.spark`.
"""
