"""Transactional produce: calls of clients, and the driver that completes transactions. The tables
of coordinators and participants are in `partition`.

    calls    stage, commit, abort and list, as clients call them
    driver   carries out the transactions that this node's partitions coordinate
"""
