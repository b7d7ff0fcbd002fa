"""Reads of partitions: counts, scans, readers and their batches."""
