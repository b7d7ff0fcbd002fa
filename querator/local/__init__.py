"""Durable functions in one process: node, queue and worker, with nothing to configure.

    from querator.local import Local

    async with Local("./shop", [checkout, ship]) as local:
        await local.run(checkout, order, id="order-17")

A program that grows takes the same functions to workers of their own, and the folder to
`querator serve`.

    local    Local: a node, a queue of executions, and a worker of it
"""

from querator.extras import needed

with needed("server", "querator.local"):
    from querator.local.local import Local

__all__ = ["Local"]
