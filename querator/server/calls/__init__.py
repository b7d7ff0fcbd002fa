"""The gRPC calls and streams of clients."""
