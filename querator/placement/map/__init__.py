"""The placement map as a replicated state machine: rows, commands and rules.

Nothing here does I/O but through the transaction of an apply.

    commands        commands that change the map, and their answers
    deletion_rules  how a queue that is being deleted leaves the map
    entry           the log format of the placement group
    following       the map of a node that does not lead the placement group
    group_rules     rules of the commands about replicas
    machine         the state machine of the placement group
    majorities      when no node can lead a partition of a deleted queue
    node_rules      rules of the commands about nodes
    rows            rows of the placement group, and the view that rules read
    rules           rules of all other commands, and the table of rules
    view            what a rule reads, and what it may change
"""
