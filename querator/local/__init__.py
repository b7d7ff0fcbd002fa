"""Durable functions in one process: node, queue and worker, with nothing to configure; and tests.

    from querator.local import Local

    async with Local("./shop", [checkout, ship]) as local:
        await local.run(checkout, order, id="order-17")

A program that grows takes the same functions to workers of their own, and the folder to
`querator serve`.

    harness        Harness: tests under a clock that skips, and workers that are killed
    local          Local: a node, a queue of executions, and a worker of it
    memory_queue   a queue of executions in memory, with the rules of a real one
    memory_worker  the worker of a harness, which may be killed at each of its writes
"""

from querator.extras import needed

with needed("server", "querator.local"):
    from querator.local.harness import Harness, Stalled
    from querator.local.local import Local
    from querator.local.memory_worker import BegunStep

__all__ = ["BegunStep", "Harness", "Local", "Stalled"]
