"""Results of items: how they come with a complete, and how producers wait for them. How they are
kept is in `partition.results`.

    returned    results of a complete, cut by partition
    waits       questions that wait at the leader until an item has ended
    calls       calls of producers: split by partition, and their answers merged
"""
