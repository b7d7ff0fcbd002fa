"""The decorators. They only mark: there is no registry, and outside of an execution a decorated
function is the function that it was.

A *step* is a call that runs once and whose result is recorded; it may change the world, unless
`effects=False` says that it only reads. A *durable* function is made of steps; it runs again from
its journal.
"""

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Generic, Literal, ParamSpec, TypeVar, overload

from querator.durable import context, threads
from querator.durable.errors import NotInExecution
from querator.durable.operations import Site, site_of, site_of_function
from querator.durable.versions import hash_of
from querator.model.errors import QueratorError
from querator.model.executions import check_text
from querator.model.limits import (
    EXECUTION_NAME_BYTES_MAX,
    EXECUTION_VERSION_BYTES_MAX,
    STEP_ATTEMPTS_CAP,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a step is tried, and when. `attempts` None: without end.

    The delay after the n-th attempt is `first * factor ** (n - 1)`, at most `most`, and is made
    longer or shorter by up to the share `jitter`. Exceptions of the types `unless` are not retried,
    nor is what a step raises as `Final(error)`.
    """

    attempts: int | None = 5
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    most: timedelta = timedelta(minutes=1)
    jitter: float = 0.2
    unless: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts is not None and not isinstance(self.attempts, int):
            raise TypeError(f"attempts is {self.attempts!r}; it must be a number, or None")
        _check_duration(self.first, "first")
        _check_duration(self.most, "most")
        _check_unless(self.unless)
        if self.attempts is not None and not 1 <= self.attempts <= STEP_ATTEMPTS_CAP:
            raise ValueError(f"attempts is {self.attempts}; it must be 1 to {STEP_ATTEMPTS_CAP}")
        if self.first < timedelta(0) or self.most < self.first:
            raise ValueError(
                f"first is {self.first} and most is {self.most}; they must not be negative, and "
                "most must not be below first"
            )
        if not 1 <= self.factor <= 1_000:
            raise ValueError(f"factor is {self.factor}; it must be 1 to 1000")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter}; it must be 0 to 1")

    def allows(self, attempt: int, error: BaseException) -> bool:
        """Whether the attempt of this number may be followed by another one."""
        return not isinstance(error, self.unless) and (
            self.attempts is None or attempt < self.attempts
        )

    def delay_ms(self, attempt: int, share: float) -> int:
        """`share` is from 0 to 1: where in the jitter the delay is."""
        first, most = self.first / _MS, self.most / _MS
        # No float is too large: the exponent is bounded by what reaches `most` in any case.
        grown = first
        for _ in range(attempt - 1):
            if grown >= most or self.factor == 1:
                break
            grown *= self.factor
        return round(min(grown, most) * (1 + self.jitter * (2 * share - 1)))


def _check_duration(value: object, field: str) -> None:
    if not isinstance(value, timedelta):
        example = f": timedelta(seconds={value})" if isinstance(value, int | float) else ""
        raise TypeError(f"{field} is {value!r}; it must be a timedelta{example}")


def _check_unless(unless: object) -> None:
    if not isinstance(unless, tuple):
        name = unless.__name__ if isinstance(unless, type) else repr(unless)
        raise TypeError(f"unless is {name}; it must be a tuple of exceptions: unless=(ValueError,)")
    for one in unless:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise TypeError(f"unless has {one!r}, which is no type of exceptions")


Upgrade = Literal["try", "never"]

ONCE: Final = Retry(attempts=1)
WITHOUT_END: Final = Retry(attempts=None)


class _Marked(Generic[P, R]):
    """A function with a name and types; what steps and durable functions share."""

    kind: ClassVar[str]
    """What it is, for messages."""

    def __init__(self, function: Callable[P, R], name: str | None, what: str) -> None:
        if isinstance(function, _Marked | type) or not callable(function):
            raise TypeError(f"@{what} is for a function, and got {function!r}")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"@{what} is for a function with one result, not for a generator")
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.name: str = getattr(function, "__name__", "") if name is None else name
        self._check_text(self.name, f"the name of the {what}")
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} of {self.__module__}>"

    @staticmethod
    def _check_text(text: str, field: str, bytes_max: int = EXECUTION_NAME_BYTES_MAX) -> None:
        """Raises ValueError for what is no name."""
        try:
            check_text(text, field=field, bytes_max=bytes_max)
        except QueratorError as error:
            raise ValueError(str(error)) from None

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise TypeError(f"an annotation of {self.name} cannot be resolved: {error}") from error

    @functools.cached_property
    def result_type(self) -> Any:
        kind = self.hints.get("return", Any)
        return type(None) if kind is None else kind

    @functools.cached_property
    def site(self) -> Site | None:
        return site_of_function(self.function)


class Step(_Marked[P, R]):
    """A marked step; see `step`."""

    kind = "step"

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        retry: Retry = ONCE,
        timeout: timedelta | None = None,
        effects: bool = True,
        once: Literal["at_most"] | None = None,
        was: tuple[str, ...] = (),
    ) -> None:
        super().__init__(function, name, "step")
        if not isinstance(was, tuple):
            raise TypeError(f'was is {was!r}; it must be a tuple of names: was=("charge",)')
        for former in was:
            self._check_text(former, f"a former name of {self.name}")
        if not isinstance(retry, Retry):
            raise TypeError(
                f"retry is {retry!r}; it must be a querator.durable.Retry: Retry(attempts=3)"
            )
        if timeout is not None:
            _check_duration(timeout, "timeout")
        if timeout is not None and timeout <= timedelta(0):
            raise ValueError(f"timeout is {timeout}; it must be positive")
        if timeout is not None and not self.is_async:
            raise ValueError("a thread cannot be ended: give the timeout to what the step calls")
        if once not in (None, "at_most"):
            raise ValueError(f"once is {once!r}; it must be 'at_most', or left out")
        if once == "at_most" and (retry.attempts != 1 or not effects):
            raise ValueError("a step that runs at most once has no retries, and has effects")
        self.retry = retry
        self.timeout_ms = None if timeout is None else max(1, round(timeout / _MS))
        self.effects = effects
        self.at_most_once = once == "at_most"
        self.was = was

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        code = context.code_here()
        if code is not None:
            if not self.is_async:
                raise _sync_in_async(self)
            site = site_of(sys._getframe(1))
            return _named(code.perform(self, args, kwargs, site), self)  # type: ignore[return-value]
        bridge = threads.bridge_here()
        if bridge is not None and not self.is_async:
            site = site_of(sys._getframe(1))
            result: R = bridge.ask(lambda: bridge.code.perform(self, args, kwargs, site))
            return result
        return self.function(*args, **kwargs)


class Durable(_Marked[P, R]):
    """A marked durable function; see `durable`."""

    kind = "durable function"

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        version: str | None = None,
        upgrade: Upgrade = "try",
    ) -> None:
        super().__init__(function, name, "durable")
        if upgrade not in typing.get_args(Upgrade):
            raise ValueError(f"upgrade is {upgrade!r}; it must be 'try' or 'never'")
        self.upgrade = upgrade
        if version is not None:
            self._check_text(version, f"the version of {self.name}", EXECUTION_VERSION_BYTES_MAX)
        self._given_version = version

    @functools.cached_property
    def version(self) -> str:
        """The version that was given, or a hash of the byte code; see `versions`."""
        if self._given_version is not None:
            return self._given_version
        return hash_of(
            self.function,
            lambda named: named.function if isinstance(named, Durable) else None,
            lambda named: named.name if isinstance(named, Step) else "",
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        code = context.code_here()
        if code is not None:
            if not self.is_async:
                raise _sync_in_async(self)
            site = site_of(sys._getframe(1))
            return _named(code.call(self, args, kwargs, site), self)  # type: ignore[return-value]
        bridge = threads.bridge_here()
        if bridge is not None and not self.is_async:
            site = site_of(sys._getframe(1))
            result: R = bridge.ask(lambda: bridge.code.call(self, args, kwargs, site))
            return result
        return self.function(*args, **kwargs)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    retry: Retry = ONCE,
    timeout: timedelta | None = None,
    effects: bool = True,
    once: Literal["at_most"] | None = None,
    was: tuple[str, ...] = (),
) -> Step[P, R]: ...


@overload
def step(
    *,
    name: str | None = None,
    retry: Retry = ONCE,
    timeout: timedelta | None = None,
    effects: bool = True,
    once: Literal["at_most"] | None = None,
    was: tuple[str, ...] = (),
) -> Callable[[Callable[P, R]], Step[P, R]]: ...


def step(function: Any = None, /, **options: Any) -> Any:
    """Marks a function as a step: `@step`, `@step(retry=Retry(attempts=8))`, or in place,
    `step(fetch, name="fetch-rates")(url)`.

    In an execution, the call is recorded: its result, or its exception after the last attempt. It
    is tried again if its record was not durable, so an effect may happen twice; `once="at_most"`
    records the beginning first, and raises StepInterrupted if the end is not known. `effects=False`
    says that the step only reads. `was` has its former names, for journals in which it has one of
    them. `timeout` is for one attempt. Arguments and result must have JSON
    (the annotated types decode it).
    """
    if function is None:
        return functools.partial(Step, **options)
    return Step(function, **options)


@overload
def durable(function: Callable[P, R], /) -> Durable[P, R]: ...


@overload
def durable(
    *, name: str | None = None, version: str | None = None, upgrade: Upgrade = "try"
) -> Callable[[Callable[P, R]], Durable[P, R]]: ...


def durable(function: Any = None, /, **options: Any) -> Any:
    """Marks a function as durable: it may be started as an execution, and called by others.

    Called in an execution, it is a part of that; when it has returned, its records become one. It
    gives out its result and nothing else: what it changes in objects of its caller is not there in
    a replay. Tasks that it leaves behind keep its records from being replaced.

    `version` names the version of its code; without it, that is a hash of the byte code. A worker
    tries another version on the journal before anything runs. With `upgrade="never"` it does not:
    an execution waits for a worker with the version that it has.
    """
    if function is None:
        return functools.partial(Durable, **options)
    return Durable(function, **options)


@overload
def call(
    function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, T]: ...


@overload
def call(
    function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, T]: ...


def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`await call(function, *args)`: any function as a step. A sync one runs in a thread. A step
    keeps its options, and a durable function is called as such.
    """
    code = context.code_or_raise("call")
    site = site_of(sys._getframe(1))
    if isinstance(function, Durable):
        return _named(code.call(function, args, kwargs, site), function)
    step = as_step(function)
    return _named(code.perform(step, args, kwargs, site), step)


def checked_function(function: object) -> Durable[..., Any]:
    """Raises TypeError for what cannot be started as an execution."""
    if isinstance(function, Durable):
        return function
    if inspect.iscoroutine(function):
        raise TypeError(
            f"function is a call of {function.__name__}; give the function, and its arguments "
            f"behind it: {function.__name__}, argument"
        )
    what = f"the step {function.name}" if isinstance(function, Step) else repr(function)
    raise TypeError(f"function is {what}; it must be a function with @durable")


def _named(called: Coroutine[Any, Any, T], marked: _Marked[..., Any]) -> Coroutine[Any, Any, T]:
    """For the warning of Python that a coroutine was never awaited."""
    called.__qualname__ = marked.name  # type: ignore[attr-defined]
    return called


def _sync_in_async(marked: _Marked[..., Any]) -> NotInExecution:
    name = marked.name
    return NotInExecution(
        f"the sync {marked.kind} {name} was called in an async function without call(); "
        f"write: await call({name}, …)"
    )


def as_step(function: Callable[..., Any]) -> Step[..., Any]:
    if isinstance(function, Step):
        return function
    if isinstance(function, Durable):
        raise TypeError(f"{function.name} is a durable function; a step is needed")
    return _adopted(function)


@functools.lru_cache(maxsize=1_024)
def _adopted(function: Callable[..., Any]) -> Step[..., Any]:
    return Step(function)
