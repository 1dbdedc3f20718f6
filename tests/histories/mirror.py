"""One random history of a mirror: a source that lives, lies and loses its tail, connections that
break, a mirror that is stopped and started. Threads take turns as they like, so that a seed repeats
what was done and not when.

Whatever happened, a mirror holds nothing that its source never had, and once the source is honest
and left alone, all that the source has.
"""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.mirror import Mirror
from replication.protocol import ApiKey
from tests.histories.history import Run, history
from tests.support.mirrored import (
    batches_of,
    check_verifies,
    grow,
    log_of,
    mirroring,
    report_of,
    until_equal,
)
from tests.support.scripted_source import (
    KAFKA_2_1,
    KAFKA_2_8,
    KAFKA_4,
    Exchange,
    Lie,
    ScriptedSource,
    SourceLog,
    SourceTopic,
    diverging,
    each_rewritten,
    header_of,
    last_moved,
    on_answers,
    on_parts,
    on_records,
    split,
    with_code,
)
from tests.support.until import until

STEPS = 24
BROKERS = 2
MAX = 2**63 - 1
COMPACTED = {"cleanup.policy": "compact"}  # and so there may be gaps


class WrongMirrorError(Exception):
    """A promise is broken."""


@dataclass
class Scene:
    rng: random.Random
    run: Run
    directory: Path
    source: ScriptedSource
    ever: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)
    words: int = 0

    # -- what the source does --------------------------------------------------------------------

    def note(self) -> None:
        for tp, log in self.source.logs().items():
            self.ever.setdefault((tp.topic, tp.partition), set()).update(log.batches)

    def log(self) -> tuple[TopicPartition, SourceLog]:
        return self.rng.choice([*self.source.logs().items()])

    def word(self) -> str:
        self.words += 1
        return f"w{self.words}-"

    def grows(self) -> str:
        tp, log = self.log()
        count = self.rng.randint(1, 5)
        grow(log, count, size=self.rng.randint(1, 4), word=self.word())
        return f"{tp} grows by {count}"

    def leaves_gap(self) -> str:
        tp, log = self.log()
        far = self.rng.choice([1, 50, 10_000])
        log.batches += log_of((1, log.leader_epoch), start=log.end + far, word=self.word()).batches
        return f"{tp} has a gap of {far}"

    def moves(self) -> str:
        tp, log = self.log()
        log.leader = self.rng.randrange(BROKERS)
        log.leader_epoch += 1
        return f"{tp} is led by {log.leader}"

    def loses_tail(self) -> str:
        tp, log = self.log()
        count = min(self.rng.randint(1, 4), len(log.batches))
        if count:
            del log.batches[-count:]
        log.base = max(log.base, log.log_start)
        log.leader_epoch += self.rng.randint(1, 2)
        more = self.rng.choice([0, 1, 6])
        grow(log, more, word=self.word())
        return f"{tp} loses {count} and has {more} others"

    def deletes(self) -> str:
        tp, log = self.log()
        if not log.batches:
            return f"{tp} has nothing to delete"
        count = self.rng.randint(1, len(log.batches))
        log.base = log.log_start = header_of(log.batches[count - 1]).last + 1
        del log.batches[:count]
        return f"{tp} starts at {log.log_start}"

    def makes_anew(self) -> str:
        name = self.rng.choice([*self.source.topics])
        logs = {number: log_of((2, 0), word=self.word()) for number in (0, 1)}
        self.source.topics[name] = SourceTopic(logs, config=COMPACTED)
        return f"{name} is made anew"

    def hides(self) -> str:
        name = self.rng.choice([*self.source.topics])
        topic = self.source.topics[name]
        topic.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if not topic.code else ErrorCode.NONE
        return f"{name} answers {topic.code.name}"

    def drops(self) -> str:
        self.source.drop_connections()
        return "connections break"

    # -- what it says ----------------------------------------------------------------------------

    def lies(self) -> str:
        name, lie = self.lie()
        self.source.lies[:] = [lie]
        return f"lies: {name}"

    def tells_truth(self) -> str:
        self.source.lies.clear()
        return "tells the truth"

    def lie(self) -> tuple[str, Lie]:
        rng, topic = self.rng, self.rng.choice([None, *self.source.topics])
        by = rng.choice([-(2**40), -3, -1, 1, 1000, 2**62])
        headers = rng.choice(
            [
                *({"epoch": epoch} for epoch in (2**31 - 1, -1)),
                *({"delta": delta} for delta in (2**31 - 1, -1)),
                {"crc": 7},
                {"magic": 9},
                {"length": 3},
                {"base": MAX - 1},
            ]
        )
        cut_at, noise = rng.randint(0, 300), rng.randbytes(50)
        kinds: list[tuple[str, Lie]] = [
            (f"{headers}", on_records(lambda data: each_rewritten(data, **headers), topic)),
            (f"moved by {by}", on_records(lambda data: _moved(data, by), topic)),
            ("cut short", on_records(lambda data: data[: len(data) // 2], topic)),
            ("in another order", on_records(lambda data: b"".join(split(data)[::-1]), topic)),
            ("twice", on_records(lambda data: data * 2, topic)),
            ("a high watermark below 0", on_parts(lambda p: p._replace(high_watermark=-1), topic)),
            (
                "a log start of 2**62",
                on_parts(lambda p: p._replace(log_start_offset=2**62), topic),
            ),
            ("diverging above all", diverging(2**30, MAX, topic)),
            *(
                (code.name, on_parts(with_code(code), topic))
                for code in rng.sample([each for each in ErrorCode if each], 2)
                if code is not ErrorCode.OFFSET_OUT_OF_RANGE
            ),
            ("cut", on_answers(ApiKey.FETCH, lambda e: setattr(e, "cut_at", cut_at))),
            ("noise", on_answers(ApiKey.FETCH, lambda e: setattr(e, "frame", noise))),
            ("no partitions", on_answers(ApiKey.FETCH, _without_partitions)),
            ("lost sessions", on_answers(ApiKey.FETCH, lambda e: _with_code(e, 70))),
            ("no metadata", on_answers(ApiKey.METADATA, lambda e: setattr(e, "cut_at", 20))),
            ("no epochs", on_answers(ApiKey.OFFSET_FOR_LEADER_EPOCH, _silent_for_a_moment)),
        ]
        return rng.choice(kinds)

    # -- the mirror ------------------------------------------------------------------------------

    def start(self) -> Mirror:
        return self.stack.enter_context(mirroring(self.source, self.directory))

    def restarts(self) -> str:
        self.stack.close()
        self.check()
        self.start()
        return "the mirror is started again"

    def is_asked(self) -> str:
        """Let it take what there is."""
        asked = sum(self.source.asked.values())
        until(lambda: sum(self.source.asked.values()) > asked + 1, "the source is asked")
        return "asked"

    def check(self) -> None:
        for path in self.directory.iterdir():
            topic, _, number = path.name.rpartition("-")
            if not path.is_dir() or not number.isdecimal():
                continue
            found = batches_of(self.directory, TopicPartition(topic, int(number)))
            for one in found:
                if one not in self.ever.get((topic, int(number)), ()):
                    raise WrongMirrorError(f"{path.name}: never written: {header_of(one)}")


def _moved(data: bytes, by: int) -> bytes:
    """The last batch elsewhere. Into a hole it may move without a trace, as no checksum covers
    where a batch is (docs/verify.md): so one that may be the first of a log does not move down."""
    return data if by < 0 and len(split(data)) == 1 else last_moved(data, by)


def _without_partitions(exchange: Exchange) -> None:
    exchange.answer = exchange.answer._replace(responses=())


def _with_code(exchange: Exchange, code: int) -> None:
    exchange.answer = exchange.answer._replace(error_code=code)


def _silent_for_a_moment(exchange: Exchange) -> None:
    exchange.cut_at = 0


@history
def run(found: Run) -> None:
    rng = random.Random(found.seed)
    versions = rng.choice([KAFKA_4, KAFKA_4, KAFKA_2_8, KAFKA_2_1])
    topics = {
        name: SourceTopic(
            {number: log_of((rng.randint(0, 3), 0), (2, 1), word=name) for number in (0, 1)},
            uuid.UUID(int=rng.getrandbits(128)),
            COMPACTED,
        )
        for name in ("orders", "payments")
    }
    with (
        tempfile.TemporaryDirectory() as directory,
        ScriptedSource(topics, brokers=BROKERS, versions=versions) as source,
    ):
        scene = Scene(rng, found, Path(directory), source)
        scene.note()
        with scene.stack:
            _live(scene, may_make_anew=versions is not KAFKA_2_1)
        scene.check()
        check_verifies(scene.directory)
        found.done["reports"] += min(1, len(report_of(scene.directory)))


def _live(scene: Scene, *, may_make_anew: bool) -> None:
    acts: list[Callable[[], str]] = [
        *[scene.grows] * 5,
        scene.leaves_gap,
        *[scene.moves] * 2,
        scene.loses_tail,
        scene.deletes,
        scene.hides,
        scene.drops,
        *[scene.lies] * 4,
        scene.tells_truth,
        scene.restarts,
        *[scene.is_asked] * 4,
        *([scene.makes_anew] if may_make_anew else []),
    ]
    scene.start()
    for _ in range(STEPS):
        act = scene.rng.choice(acts)
        if act in (scene.restarts, scene.is_asked):
            did = act()
        else:
            with scene.source.changed:
                did = act()
                scene.note()
                scene.source.changed.notify_all()
        scene.run.done[act.__name__] += 1
        scene.run.trace.append(did)
        scene.check()

    def be_honest() -> None:
        scene.source.lies.clear()
        for topic in scene.source.topics.values():
            topic.code = ErrorCode.NONE
            for log in topic.partitions.values():
                grow(log)
        scene.note()

    scene.source.change(be_honest)
    until_equal(scene.source, scene.directory)


__all__ = ["WrongMirrorError", "run"]
