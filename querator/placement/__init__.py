"""Placement: which queues there are, where their partitions live, and making it so."""
