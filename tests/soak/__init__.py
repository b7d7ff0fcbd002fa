"""An hour of load on three real nodes with all kinds of faults, and measurements of their
growth.
"""
