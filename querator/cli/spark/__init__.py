"""`querator spark`: pipelines between queues and files, on Spark. The pipelines themselves are in
`querator.spark.pipelines`.

    archive        `archive`: a queue into Parquet files
    copy           `copy`: a queue into another one
    demo           `demo`: real data, Spark and a cluster, with kills
    demo_counts    counts of the demo, and what must balance
    demo_run       one run of the demo: nodes, Spark, consumers and kills
    driver         a Spark program as a child process that may be killed
    ingest         `ingest`: files into a queue
    paths          checks of paths before Spark starts
    queues         checks of queues before Spark starts
    redrive        `redrive`: dead letters back to their queue
    replay         `replay`: an archive into a queue
    run            shared options, and a run from session to summary
    spark          the group of these commands
    stats          `stats`: contents of queues, counted by Spark
    words          messages in the words of the running command
"""
