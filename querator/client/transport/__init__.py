"""Connections to nodes: calls that are repeated, streams that are opened again, errors."""
