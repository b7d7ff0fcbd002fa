"""Vocabulary: the values that travel between rooms. Pure: no clock, no chance, no I/O."""
