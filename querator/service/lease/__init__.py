"""Lease calls and lease streams: waiting, sharing what is ready, granting, giving back."""
