"""Minutes of load on three real nodes with random faults; then the checkers run."""
