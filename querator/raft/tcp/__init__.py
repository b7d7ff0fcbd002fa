"""The connections to the other nodes: dialing, handshakes, TLS and frames."""
