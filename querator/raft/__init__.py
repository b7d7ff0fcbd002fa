"""Raft groups over PySyncObj. A group replicates entries into a machine and knows nothing about
queues.
"""
