"""The producer: gathering, streams, and the requests without an answer yet."""
