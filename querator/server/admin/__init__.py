"""The admin port: metrics and probes."""
