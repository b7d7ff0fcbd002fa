"""Checks of queues before Spark starts, because its start takes seconds."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from querator.cli.shared.connection import CommandTarget
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.similar_queues import similar_queues
from querator.client import Client, QueueInfo
from querator.client.errors import NamespaceNotFound, QueueNotFound
from querator.spark.pipelines.settings import QueuePlace
from querator.wire.tls import Tls


def find_queues(
    *, reads: Sequence[QueuePlace] = (), fills: Sequence[QueuePlace] = ()
) -> list[QueueInfo]:
    """The queues at these places, as their clusters know them: first those that the command reads,
    then those that it fills. Raises Failure, which names every missing queue and similar names of
    its namespace, and TlsError.
    """
    found: list[QueueInfo] = []
    missing: list[str] = []
    for place in (*reads, *fills):
        info = _target(place).run(partial(_find, place=place, fills=place in fills))
        if isinstance(info, QueueInfo):
            found.append(info)
        else:
            missing.append(info)
    if missing:
        raise Failure(" ".join(dict.fromkeys(missing)), ExitCode.REFUSED)
    return found


async def _find(client: Client, place: QueuePlace, *, fills: bool) -> QueueInfo | str:
    """The queue, or the sentences that say that it is missing and what to do."""
    try:
        return await client.get_queue(place.queue)
    except NamespaceNotFound as error:
        return (
            f"There is no namespace {place.namespace} at {place.endpoint} ({error.code.name}). "
            f"A namespace begins with its first queue: querator queue create"
        )
    except QueueNotFound as error:
        missing = (
            f"There is no queue {place.queue} in namespace {place.namespace} at {place.endpoint} "
            f"({error.code.name})."
        )
        near = await similar_queues(client, place.queue)
        if near:
            missing = f"{missing} Did you mean {' or '.join(near)}?"
        if fills:
            return f"{missing} Create it with: querator queue create {place.queue}"
        return missing if near else f"{missing} List the queues with: querator queue list"


def _target(place: QueuePlace) -> CommandTarget:
    tls = None
    if place.tls_ca_file or place.tls_cert_file:
        tls = Tls.from_files(ca=place.tls_ca_file, cert=place.tls_cert_file, key=place.tls_key_file)
    timeout = timedelta(seconds=place.retry_seconds)
    return CommandTarget(place.endpoint, place.namespace, timeout, tls)
