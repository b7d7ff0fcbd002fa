"""Each item arrives exactly once at a partition that closes and is used again, or at the first
partition of its queue, however late messages are.

The source, the target and the first partition are real partitions. The carrier is a number of
messages that are delivered in any order, late and more than once, as several leaders of the source
would send them.
"""

import random
from collections import Counter

from querator.model.commands import (
    Move,
    Moved,
    MoveDone,
    MoveElsewhere,
    Refusal,
    ResumeMoves,
    Route,
)
from querator.model.errors import ErrorCode
from querator.partition.moves import MOVES_SINCE
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to
from tests.unit.partition.test_moves import DEAD, batch_of, kill, letters

FIRST = DEAD + 1
SEEDS = 150
STEPS = 60


class World:
    def __init__(self, seed: int) -> None:
        environment = MemoryEnvironment()
        self.chance = random.Random(seed)
        self.work = PartitionLog(environment, checked=False)
        self.work.configure(dead_targets=dead_to(DEAD))
        self.target = PartitionLog(environment, group=DEAD, checked=False)
        self.target.configure(queue="dead", partition=1)
        self.first = PartitionLog(environment, group=FIRST, checked=False)
        self.first.configure(queue="dead")
        self.killed = self.version = self.resumed = 0
        self.closing = False
        self.moves: list[tuple[int, Move, bytes]] = []
        """Batches on their way, each with its target."""
        self.answers: list[MoveDone | MoveElsewhere | ResumeMoves] = []
        """What the leaders of the source propose to it."""

    def run(self) -> None:
        steps = (self.die, self.change, self.send, self.deliver, self.answer)
        for _ in range(STEPS):
            self.chance.choices(steps, (10, 12, 30, 30, 25))[0]()
        self.end()

    def die(self) -> None:
        items = self.chance.randint(1, 3)
        kill(self.work, items)
        self.killed += items

    def change(self) -> None:
        """The target begins to close, or is used again; or a change begins and is undone."""
        self.version += 1
        partitions = 2 if self.closing else 1
        done = self.chance.random() < 0.8
        self.target.one(Route(self.version, partitions, open=done))
        if done:
            self.closing = not self.closing
        else:
            self.version += 1
            self.target.one(Route(self.version, 3 - partitions, open=True))

    def send(self, group: int = DEAD) -> None:
        batch = batch_of(self.work, group)
        if batch is not None:
            move = Move(GROUP, batch.first_move, batch.lengths, batch.items, since=batch.since)
            self.moves.append((group, move, batch.attachment))

    def deliver(self) -> None:
        if not self.moves:
            return
        which = self.chance.randrange(len(self.moves))
        group, move, data = self.moves[which]
        if self.chance.random() < 0.7:
            del self.moves[which]
        result = (self.target if group == DEAD else self.first).one(move, data)
        if isinstance(result, Moved):
            self.answers.append(MoveDone(group, result.upto_move))
            return
        assert isinstance(result, Refusal)
        if result.code is ErrorCode.ROUTING_CHANGED:
            self.answers.append(MoveElsewhere(group, int(result.limit), FIRST, move.since))
        elif result.field == MOVES_SINCE:
            self.answers.append(ResumeMoves(group, int(result.limit)))
            self.resumed += 1
        else:
            assert result.code is ErrorCode.SEQUENCE_GAP

    def answer(self) -> None:
        if not self.answers:
            return
        which = self.chance.randrange(len(self.answers))
        command = self.answers[which]
        if self.chance.random() < 0.7:
            del self.answers[which]
        self.work.one(command)

    def end(self) -> None:
        """All late messages arrive, and then the carrier works undisturbed."""
        for _ in range(1_000):
            if not (self.moves or self.answers) and batch_of(self.work) is None:
                break
            while self.moves:
                self.deliver()
            while self.answers:
                self.answer()
            self.send(DEAD)
            self.send(FIRST)
        found = Counter(
            item.dead_letter.origin_seq
            for log in (self.target, self.first)
            for item in letters(log)
        )
        assert sorted(found) == list(range(1, self.killed + 1)), "an item has not arrived"
        assert max(found.values(), default=1) == 1, "an item has arrived twice"


def test_each_item_arrives_once_however_late_messages_are():
    resumed = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        resumed += world.resumed
    assert resumed > SEEDS / 2
