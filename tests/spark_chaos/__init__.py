"""Two streams of Spark while its driver, its workers and the nodes are killed: see `make
spark-chaos`.
"""
