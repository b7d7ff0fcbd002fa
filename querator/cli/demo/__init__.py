"""`querator demo`, and what it shares with the demo on Spark."""
