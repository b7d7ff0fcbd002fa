"""The transfer of a whole state to a replica that is behind its leader's log."""
