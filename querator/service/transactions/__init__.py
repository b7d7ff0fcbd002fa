"""Transactional produce: the calls of clients, and the driver that finishes transactions."""
