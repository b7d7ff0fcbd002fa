"""What clients saw of a queue, and whether that is allowed: histories and their checkers.

Simulation, integration and chaos share them. They read histories only, nothing internal.
"""
