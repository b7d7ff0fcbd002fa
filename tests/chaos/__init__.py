"""Minutes of load on three real nodes while everything fails at random; then the checkers."""
