"""The consumer: lease streams, leases, and settling them."""
