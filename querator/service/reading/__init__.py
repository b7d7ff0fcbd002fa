"""Reads of a queue: pages of items and letters, scans, counts, and the calls of readers. How a
partition's tables are read is in `partition`.

    queries     linearizable and stale reads of partitions and of the map
    browsing    scans of partitions and batches, page by page, in threads
    readers     calls of readers, split by partition and merged
    advancing   one advance of a reader across all partitions
    paging      page tokens
    executions  executions and their journals, read at their leaders
"""
