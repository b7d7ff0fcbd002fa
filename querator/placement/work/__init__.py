"""What nodes do so that the cluster becomes what the map says."""
