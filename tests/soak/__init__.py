"""An hour of load on three real nodes while everything fails, and what grows meanwhile."""
