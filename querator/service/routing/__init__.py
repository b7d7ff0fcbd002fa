"""The way of a command to the leader of a partition, on this node or another one."""
