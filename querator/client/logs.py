"""The SDK's loggers, of the standard library; docs/sdk.md names them.

The SDK adds no handler. In a program that does not set up logging, Python writes warnings and
errors to standard error.
"""

import logging

HANDLERS = logging.getLogger("querator.client.handlers")  # noqa: TID251 - the program's own logging
"""`Consumer.run`: exceptions of handlers, settles that failed, stops."""

CONNECTION = logging.getLogger("querator.client.connection")  # noqa: TID251 - the program's own
"""Connections to nodes: lost, and there again; requests that wait for a leader."""

LOCKS = logging.getLogger("querator.client.locks")  # noqa: TID251 - the program's own logging
"""Tokens of locks that could not be given back: they are free when their leases end."""
