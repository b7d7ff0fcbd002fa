"""`querator demo`, and what it shares with the demo on Spark.

The modules and sub-packages:

    demo         the command: nodes, load, a killed node, the proof
    demo_run     the work: all flights through one queue, and the counts
    flights      the input: 336,776 flights of 2013
    local_nodes  node processes on this machine
    measure      latencies, and the progress of long work
"""
