"""`querator spark`: pipelines between queues and files, on Spark."""
