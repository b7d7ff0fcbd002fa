"""Leaders that hang or are cut off under a steady load: how long nothing is acknowledged."""
