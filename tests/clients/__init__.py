"""Clients in each language, against a real node."""
