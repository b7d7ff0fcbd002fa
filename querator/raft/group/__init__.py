"""One group on this node: its replica, its machine, and the calls between them."""
