"""How a node finds, founds or joins its cluster, and comes back to it."""
