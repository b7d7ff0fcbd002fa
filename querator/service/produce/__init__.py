"""Produce calls: split by partition, and stored there."""
