"""`querator spark`: pipelines between queues and files, on Spark.

The modules and sub-packages:

    archive      a queue into Parquet files
    copy         a queue into another one
    demo         real data through Spark while processes are killed
    demo_counts  the counts that the demo compares
    demo_run     the work of the demo: nodes, Spark, consumers, kills
    driver       a Spark program as a process that may be killed
    ingest       files into a queue
    redrive      dead letters to the queue they came from
    replay       an archive into a queue
    run          shared options, and a run from session to summary
    spark        the group of commands
    stats        counts of queues, as a page with pictures
"""
