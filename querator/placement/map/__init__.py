"""The placement map as a replicated state machine: rows, commands and rules.

The type of the map is in `querator.model`, the work that follows from it in `placement.tasks`.

    commands          commands that change the map, with their results
    deletion_rules    how a queue that is being deleted leaves the map
    entry             file format of the placement group's log
    group_rules       rules for commands about replicas
    machine           the state machine of the placement group
    majorities        when no node can lead a deleted queue's partitions
    map_follower      the map of a node that does not lead group 0
    node_rules        rules for commands about nodes
    rows              the stored rows of the map
    rules             rules for commands about queues; dispatch of all commands
    view              the input and output of a rule
"""
