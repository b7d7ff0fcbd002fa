"""The disk: one ordered key-value environment per node. LMDB is imported nowhere else."""
