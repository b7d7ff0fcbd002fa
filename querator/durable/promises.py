"""Promises: values that come from outside, once, for the token that the code has given away."""

import asyncio
import base64
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from querator.durable.errors import CodecError
from querator.durable.operations import Operation
from querator.durable.paths import Path
from querator.model.executions import promise_mac

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode

T = TypeVar("T")


class ExecutionIdentity(msgspec.Struct, frozen=True):
    """Which execution it is. `number` and `secret` are those of its partition. `origin` is the run
    in which its journal has begun: what was made before a rewind is the same behind it. `chance`:
    what random numbers follow from, where the secret is not known.
    """

    namespace: str
    queue: str
    partition: int
    number: int
    id: str
    run: int
    secret: bytes
    origin: int
    chance: bytes = b""


class PromiseToken(msgspec.Struct, frozen=True, array_like=True):
    """What a token says: where the promise is, and the proof that its execution has made it."""

    namespace: str
    queue: str
    partition: int
    number: int
    run: int
    path: bytes
    mac: bytes

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).rstrip(b"=").decode()

    @classmethod
    def decode(cls, token: str) -> "PromiseToken":
        """Raises CodecError for a text that is no token."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            return msgspec.msgpack.decode(data, type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CodecError("the token of a promise is damaged") from error


def make_token(identity: ExecutionIdentity, path: Path) -> str:
    mac = promise_mac(identity.secret, identity.number, identity.origin, path)
    return PromiseToken(
        namespace=identity.namespace,
        queue=identity.queue,
        partition=identity.partition,
        number=identity.number,
        run=identity.origin,
        path=path,
        mac=mac,
    ).encode()


class Promise(Generic[T]):
    """`await promise` gives the value, or raises what the promise was rejected with, or
    TimeoutError. It may be awaited by several tasks. `token` goes to what resolves it.
    """

    def __init__(
        self, code: "ExecutionCode", operation: Operation, token: str, timeout_at_s: float | None
    ) -> None:
        self.token = token
        self._code = code
        self._operation = operation
        self._timeout_at_s = timeout_at_s

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    async def wait(self) -> T:
        code = self._code
        if code.is_away:
            await code.refuse()
        future = self._operation.future
        code.awaited[self._operation.path] += 1
        try:
            if self._timeout_at_s is None or future.done():
                value: T = await asyncio.shield(future)
            else:
                async with asyncio.timeout_at(self._timeout_at_s):
                    value = await asyncio.shield(future)
            return value
        finally:
            code.awaited[self._operation.path] -= 1
