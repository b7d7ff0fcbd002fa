"""`make durable-demo`: flights as executions, while workers and a node are killed.

__main__   the command: nodes, workers, kills, and the last line
balance    the counts: the flights' own, those of the executions, and those of the ledger
flights    which flights, and what is known of each
shop       the durable function, its steps, and a worker of it as a process of its own
"""
