"""Links between nodes: forwarded commands and queries."""
