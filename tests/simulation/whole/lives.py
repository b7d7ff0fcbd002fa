"""Executions, as their clients, their code and the world around them saw them.

a repeated start makes no second execution
a run of an execution has one end, and all clients that ask hear this one
no effect begins before everything that its execution has seen is durable: what it had seen is the
    beginning of what its execution has seen at the end
an effect of the result was begun, and by this execution; no two have the same
no effect begins again when an attempt has begun whose result is recorded (with right clocks)
what a signal says is received once at most, and in the order of the journal; what was accepted is
    received if the code receives enough
the first resolution of a promise counts
a published value that a client has read never goes back, unless clients rewind the execution, or
    start it again
a timer does not fire early (with right clocks)
an item for each effect of the result was produced, and none for other effects
a failed or cancelled execution that began to reserve has released
each execution ends
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from querator.model.executions import ExecutionState

EARLY_S = 0.9
"""Leaders' clocks may be 400 ms apart, and their time comes to workers with the network's delay."""
_RESOLVED = "resolved"
"""In the place of a value that is not known."""


@dataclass(frozen=True)
class Begun:
    """An effect that has begun."""

    label: str
    token: str
    """Its result: no other attempt has the same."""
    past: tuple[str, ...]
    step_key: str
    run: int = 1


@dataclass(frozen=True)
class Found:
    """An execution at the end, as its partition has it."""

    state: ExecutionState
    end: str
    """What it has ended with, in the words of `Lives.heard`."""
    run: int = 1
    result: tuple[str, ...] = ()
    """What a completed one has seen, in its order."""
    names: tuple[str, ...] = ()
    """Those of the steps that are done in its last run."""


@dataclass
class _Life:
    parts: tuple[str, ...]
    made: int = 0
    """Answers that say that the call has made it."""
    accepted: bool = False
    begun: list[Begun] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)
    """By text: its index in the journal; -1: it may not have been accepted."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Tokens of promises, with the value that counts; empty: it is not resolved."""
    values: set[str] = field(default_factory=set)
    """Those with which clients have resolved promises."""
    published: int = 0
    items: dict[str, set[str]] = field(default_factory=dict)
    """Items that the code has produced in any replay, by the effect that they are for."""
    heard: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Ends, by the number of the run."""
    is_open: bool = True
    changes: int = 0
    """How often clients have begun or ended to rewind it, or to start it again."""


class Lives:
    """`produced` takes items that may have been produced.

    `trusts_clocks`: whether no clock jumps. A leader whose clock jumps lets leases lapse."""

    def __init__(
        self,
        *,
        trusts_clocks: bool = True,
        produced: Callable[[Sequence[str]], None] = lambda items: None,
    ) -> None:
        self._trusts_clocks = trusts_clocks
        self._produced = produced
        self.has_versions = False
        """Whether code is changed. What older code has not recorded has another past."""
        self.found: list[str] = []
        self.compared = 0
        """Effects whose past was compared with the end."""
        self._lives: dict[str, _Life] = {}

    # --- clients ---------------------------------------------------------------------------

    def starting(self, name: str, parts: tuple[str, ...]) -> None:
        self._lives.setdefault(name, _Life(parts))

    def started(self, name: str, *, made: bool) -> None:
        """`made`: the answer says that this call has made it."""
        life = self._lives[name]
        life.accepted = True
        life.made += made
        if life.made > 1:
            self.found.append(f"execution {name} was made {life.made} times")

    def signalled(self, name: str, text: str, index: int) -> None:
        """`index` -1: the outcome is not known."""
        self._lives[name].signals[text] = index

    def promised(self, name: str, token: str) -> None:
        self._lives[name].tokens.setdefault(token, "")

    def resolving(self, name: str, value: str) -> None:
        self._lives[name].values.add(value)

    def resolved(self, name: str, token: str, value: str, *, wins: bool) -> None:
        """`wins`: the answer says that the value counts. It is not known of a repeated call."""
        tokens = self._lives[name].tokens
        tokens.setdefault(token, "")
        if wins and tokens[token] not in ("", _RESOLVED) and not self._lives[name].changes:
            self.found.append(f"{name}: {tokens[token]} and {value} have resolved one promise")
        if wins or not tokens[token]:
            tokens[token] = value if wins else _RESOLVED

    def published_of(self, name: str) -> int:
        """The highest published value that a client has read."""
        return self._lives[name].published

    def published(self, name: str, value: int, *, least: int) -> None:
        """A client has read the value. `least`: what was read before it asked."""
        life = self._lives[name]
        life.published = max(life.published, value)
        if value < least and not life.changes:
            self.found.append(f"{name} has published {value}, and {least} before")

    def withdraw(self, name: str, token: str) -> bool:
        """The token is valid no more. Returns whether that may be: the execution began again."""
        self._lives[name].tokens.pop(token, None)
        return self._lives[name].changes > 0

    def changing(self, name: str, parts: tuple[str, ...] | None = None) -> None:
        """A client begins or ends to rewind it, or to start it again with these parts."""
        life = self._lives[name]
        life.changes += 1
        life.is_open = True
        if parts is not None:
            life.parts = parts

    def asking(self, names: Iterable[str]) -> dict[str, int]:
        """A client begins to wait for ends. Returns what `heard` takes."""
        return {name: self._lives[name].changes for name in names}

    def heard(self, name: str, end: str, *, run: int, changes: int) -> None:
        life = self._lives[name]
        life.heard[run].add(end)
        if life.changes == changes:
            life.is_open = False

    @property
    def open_ids(self) -> list[str]:
        """Those that were accepted, and whose end no client has heard."""
        return [name for name, life in self._lives.items() if life.accepted and life.is_open]

    @property
    def ended_ids(self) -> list[str]:
        return [name for name, life in self._lives.items() if not life.is_open]

    @property
    def unanswered(self) -> list[str]:
        """Those whose starts have no answer."""
        return [name for name, life in self._lives.items() if not life.accepted]

    def parts_of(self, name: str) -> tuple[str, ...]:
        return self._lives[name].parts

    def signals_of(self, name: str) -> int:
        return len(self._lives[name].signals)

    def accepted_words(self, name: str) -> int:
        """How many signals `word` the execution certainly has. Another run may have none."""
        life = self._lives[name]
        signals = () if life.changes else life.signals.items()
        return sum(index >= 0 and mailbox_of(text) == "word" for text, index in signals)

    def unresolved(self) -> list[tuple[str, str]]:
        """Executions and tokens."""
        return [
            (name, token)
            for name, life in self._lives.items()
            for token, value in life.tokens.items()
            if life.is_open and (not value or life.changes)
        ]

    # --- effects ---------------------------------------------------------------------------

    def begins(self, name: str, begun: Begun) -> None:
        life = self._lives.get(name.partition("/")[0])
        if life is None:
            self.found.append(f"{name} runs, and was never started")
            return
        if "/" not in name:
            life.begun.append(begun)

    def produces(self, name: str, token: str, item: str) -> None:
        self._produced((item,))
        self._lives[name].items.setdefault(token, set()).add(item)

    def slept(self, name: str, seconds: float, took: float) -> None:
        """A durable timer of `seconds` has fired after `took`."""
        if self._trusts_clocks and took < seconds - EARLY_S:
            self.found.append(f"{name} has slept {took:.3f} s instead of {seconds}")

    # --- the end ---------------------------------------------------------------------------

    def judge(self, executions: Mapping[str, Found]) -> Iterable[str]:
        """`executions`: those of the partitions at the end, by their ids."""
        yield from self.found
        for name, life in self._lives.items():
            found = executions.get(name)
            if found is None:
                if life.accepted:
                    yield f"execution {name} is gone"
                continue
            if not found.state.closed:
                yield f"execution {name} has not ended: {found.state.name}"
            for end in life.heard[found.run] - {found.end}:
                yield f"execution {name} has ended with {found.end}; a client has heard {end}"
            for run, ends in life.heard.items():
                if len(ends) > 1 or run > found.run:
                    yield f"run {run} of {found.run} of {name} has ended with {ends}"
            yield from (f"execution {name}: {text}" for text in self._wrong(life, found))
        for name, found in executions.items():
            if not found.state.closed and "/" in name:
                yield f"execution {name} has not ended: {found.state.name}"

    def judge_items(self, executions: Mapping[str, Found], seen: Collection[str]) -> Iterable[str]:
        """`seen`: the items that are there, or were completed."""
        for name, life in self._lives.items():
            found = executions.get(name)
            if found is None or found.state is not ExecutionState.COMPLETED or life.changes:
                continue
            for token, items in life.items.items():
                there = [item for item in items if item in seen]
                if token in found.result and not there:
                    yield f"execution {name}: {items} was not produced"
                elif token not in found.result and there:
                    yield f"execution {name}: {there} is there, and its effect is not recorded"

    def _wrong(self, life: _Life, found: Found) -> Iterable[str]:
        if found.state is ExecutionState.COMPLETED:
            yield from self._wrong_result(life, found.result)
        elif found.state in (ExecutionState.FAILED, ExecutionState.CANCELLED):
            reserves = any(one.label == "reserve" and one.run == found.run for one in life.begun)
            if reserves and "release" not in found.names:
                yield f"it has ended as {found.state.name}, and has not released: {found.names}"

    def _wrong_result(self, life: _Life, result: tuple[str, ...]) -> Iterable[str]:
        counts_all = self._trusts_clocks and not (self.has_versions or life.changes)
        for one in life.begun:
            if not counts_all and one.token not in result:
                # Of a worker that had lost its lease, of older code, or of a former run.
                continue
            self.compared += 1
            if one.past != result[: len(one.past)]:
                yield f"{one.label} has begun after {one.past}; the result is {result}"
        tokens = {one.token for one in life.begun}
        words: defaultdict[str, list[str]] = defaultdict(list)
        for text in result:
            kind, _, rest = text.partition(" ")
            words[kind].append(rest)
        for token in words["effect"]:
            if f"effect {token}" not in tokens:
                yield f"its result has effect {token}, which it has not begun"
        if len(set(words["effect"])) != len(words["effect"]):
            yield f"its result has an effect twice: {result}"
        if self._trusts_clocks:
            yield from _begun_again(life, result)
        mailboxes: defaultdict[str, list[str]] = defaultdict(list)
        for text in words["signal"]:
            mailboxes[mailbox_of(text)].append(text)
        for mailbox, received in mailboxes.items():
            yield from self._wrong_signals(life, mailbox, received)
        yield from _wrong_promises(life, words["promise"])

    def _wrong_signals(self, life: _Life, mailbox: str, received: list[str]) -> Iterable[str]:
        for text in received:
            if text not in life.signals:
                yield f"it has received {text}, which was never sent"
        known = [life.signals[text] for text in received if life.signals.get(text, -1) >= 0]
        if known != sorted(set(known)):
            yield f"it has received {received}, with the indexes {known}"
        if len(set(received)) != len(received):
            yield f"it has received a signal twice: {received}"
        # A mailbox gives the oldest first: what was accepted earlier is not passed over.
        passed = [
            text for text, index in life.signals.items()
            if known and 0 <= index < max(known) and text not in received
            and mailbox_of(text) == mailbox
        ]  # fmt: skip
        # What a former run has not received is gone.
        if passed and not life.changes:
            yield f"it has received {received}, and not the earlier {passed}"


def _wrong_promises(life: _Life, values: list[str]) -> Iterable[str]:
    winners = set(life.tokens.values()) - {"", _RESOLVED}
    for value in values:
        if value not in life.values:
            yield f"its promise gave {value}, which no client has sent"
        if winners and value not in winners and not life.changes:
            yield f"its promise gave {value}; {winners} was said to count"


def _begun_again(life: _Life, result: tuple[str, ...]) -> Iterable[str]:
    """The lease that records a result was held when its attempt began: no other may begin."""
    last = {one.step_key: one for one in life.begun}
    for one in life.begun:
        if one.token in result and last[one.step_key] is not one:
            yield f"{one.label} has begun again, as {last[one.step_key]}, after {one}"


def mailbox_of(signal: str) -> str:
    """The name of a signal, which its text begins with."""
    return signal.partition(":")[0]
