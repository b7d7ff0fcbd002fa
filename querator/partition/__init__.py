"""The rules of a queue's partition: a deterministic state machine without clock, chance or I/O."""
