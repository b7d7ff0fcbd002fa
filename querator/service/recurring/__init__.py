"""Recurrences: the calls of operators, and the driver by which leaders let them run. Their tables
and the rules of decisions are in `partition`.

    calls      create, list, change, pause and delete recurrences; their coming due times
    planning   what is to be decided about a recurrence at an instant
    driver     proposes the decisions of the partitions that this node leads
"""
