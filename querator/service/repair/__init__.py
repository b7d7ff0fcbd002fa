"""Damaged payload, stopped partitions, and the conditions that operators see."""
