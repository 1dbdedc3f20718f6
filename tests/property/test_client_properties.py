"""Producers and consumers over a network that loses, delays and repeats, with leaders that move and
logs that are cut: what they are told must be what is in the log."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from logstore.log.reading.fetching import EARLIEST
from replication.client import (
    ConsumerConfig,
    ConsumerCore,
    Metadata,
    Outcome,
    PollResult,
    ProducerConfig,
    ProducerCore,
    SendResult,
)
from replication.common.errors import LogTruncationError, TopicRecreatedError
from tests.support.clients import BROKERS, TP, Brokers

SEVERAL = pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 600), marks=pytest.mark.long)], ids=["few", "many"]
)
IDEMPOTENT = ProducerConfig(idempotent=True, delivery_timeout_ms=3000, request_timeout_ms=400)
WEATHER = {
    "lost": 0.05,
    "answer_lost": 0.1,
    "late": 0.04,
    "repeated": 0.1,
    "refused": 0.05,
    "unsure": 0.1,
    "stale": 0.2,
}


class Sending:
    """A producer with unique values, and what it was told of each batch."""

    def __init__(self, brokers: Brokers, config: ProducerConfig) -> None:
        self.brokers = brokers
        self.metadata = Metadata(brokers.runtime, brokers, lambda: BROKERS)
        self.core = ProducerCore(brokers.runtime, brokers, self.metadata, config)
        self.values: list[list[bytes]] = []
        self.results: dict[int, SendResult] = {}
        self.lost: set[int] = set()  # cut by an unclean election

    def send(self, count: int) -> None:
        number = len(self.values)
        values = [b"%d.%d" % (number, n) for n in range(count)]
        self.values.append(values)

        def on_sent(result: SendResult) -> None:
            assert number not in self.results, "told twice"
            self.results[number] = result

        self.core.send(TP, [(None, value) for value in values], on_sent)

    def cut(self, offset: int) -> None:
        for record in self.brokers.topic.records():
            if record.offset >= offset:
                self.lost.add(int(bytes(record.value or b"").partition(b".")[0]))

    def check(self, *, once: bool) -> None:
        assert len(self.results) == len(self.values), "somebody waits for ever"
        found = [bytes(record.value or b"") for record in self.brokers.topic.records()]
        counts = Counter(found)
        seen = [n for n, values in enumerate(self.values) if counts[values[0]]]
        for number, values in enumerate(self.values):
            result = self.results[number]
            times = {counts[value] for value in values}
            assert len(times) == 1, "a part of a batch"
            if once:
                assert max(times) <= 1, f"batch {number} is there {times} times"
            if result.outcome is Outcome.ACKNOWLEDGED and number not in self.lost:
                assert min(times) >= 1, f"acknowledged batch {number} is lost"
                at = result.base_offset
                assert at < 0 or found[at : at + len(values)] == values, "at another offset"
        if once:
            firsts = [found.index(self.values[n][0]) for n in seen]
            assert firsts == sorted(firsts), "out of order"


def run(seed: int, config: ProducerConfig, *, unclean: bool = False) -> Sending:
    brokers = Brokers(seed, **WEATHER)
    draw = random.Random(-seed)
    sending = Sending(brokers, config)
    for _ in range(30):
        for _ in range(draw.randrange(3)):
            sending.send(draw.choice((1, 1, 2, 3)))
        brokers.runtime.advance(draw.choice((0, 5, 50, 400, 2500)))
        if draw.random() < 0.2:
            if unclean and draw.random() < 0.5:
                cut = draw.randint(0, brokers.topic.log_end)
                sending.cut(cut)
                brokers.move(cut_to=cut)
            else:
                brokers.lose_tail()
    brokers.runtime.advance(60_000)
    return sending


@SEVERAL
def test_an_idempotent_producer_writes_each_batch_once_and_in_order(seeds: range) -> None:
    for seed in seeds:
        run(seed, IDEMPOTENT).check(once=True)


@SEVERAL
def test_it_does_so_when_leaders_forget_what_it_wrote(seeds: range) -> None:
    """Producer state goes with the records that an unclean election cuts."""
    for seed in seeds:
        run(seed, IDEMPOTENT, unclean=True).check(once=True)


@SEVERAL
def test_a_producer_without_idempotence_loses_nothing(seeds: range) -> None:
    for seed in seeds:
        run(seed, replace(IDEMPOTENT, idempotent=False)).check(once=False)


def test_the_weather_does_what_it_says() -> None:
    counts: Counter[str] = Counter()
    outcomes: Counter[Outcome] = Counter()
    epochs = 0
    for seed in range(20):
        sending = run(seed, ProducerConfig(idempotent=True, delivery_timeout_ms=3000))
        counts.update(sending.brokers.counts)
        outcomes.update(result.outcome for result in sending.results.values())
        epochs += sum(bool(r.stamp and r.stamp.epoch) for r in sending.results.values())
    assert set(counts) == {kind.replace("_", " ") for kind in WEATHER}
    assert outcomes[Outcome.ACKNOWLEDGED] > 100
    assert outcomes[Outcome.UNKNOWN] > 10
    assert epochs > 20


class Reading:
    """A consumer, and what it was given, in the order of giving."""

    def __init__(self, brokers: Brokers, reset: int | None) -> None:
        self.brokers = brokers
        self.metadata = Metadata(brokers.runtime, brokers, lambda: BROKERS)
        config = ConsumerConfig(reset=reset, max_bytes=300, timeout_ms=20_000)
        self.core = ConsumerCore(brokers.runtime, brokers, self.metadata, [TP], config)
        self.read: list[tuple[int, bytes]] = []
        self.errors: list[BaseException] = []
        self.polling = False

    def poll(self) -> None:
        if not self.polling:
            self.polling = True
            self.core.poll(100, self._polled)

    def _polled(self, result: PollResult) -> None:
        self.polling = False
        for _, record in result.records:
            self.read.append((record.offset, bytes(record.value or b"")))
        if result.error is not None:
            self.errors.append(result.error)

    def finish(self) -> None:
        """To the end of the log, and on: another log of the same length may be there by now."""
        self.brokers.rates = {}
        at_the_end = 0
        for _ in range(400):
            self.poll()
            self.brokers.runtime.advance(200)
            ended = self.core.positions[TP].offset == self.brokers.topic.log_end
            at_the_end = at_the_end + 1 if ended else 0
            if self.errors or at_the_end == 10:
                return
        raise AssertionError("it does not come to the end")

    @property
    def log(self) -> list[tuple[int, bytes]]:
        return [(r.offset, bytes(r.value or b"")) for r in self.brokers.topic.records()]

    def what_holds(self) -> list[tuple[int, bytes]]:
        """Of what was read that which was not taken back by a later step to a lower offset."""
        held: list[tuple[int, bytes]] = []
        for offset, value in self.read:
            while held and held[-1][0] >= offset:
                held.pop()
            held.append((offset, value))
        end = self.core.positions[TP].offset or 0
        return [read for read in held if read[0] < end]


def read_through(seed: int, reset: int | None, *, anew: bool) -> Reading:
    brokers = Brokers(seed, lost=0.05, answer_lost=0.05, stale=0.2)
    draw = random.Random(-seed)
    reading = Reading(brokers, reset)
    number = 0
    for _ in range(40):
        if draw.random() < 0.5:
            for _ in range(draw.randrange(6)):
                brokers.write(b"%d" % number)
                number += 1
        if draw.random() < 0.2:
            if anew and draw.random() < 0.4:
                brokers.make_anew()
            else:
                brokers.move(cut_to=draw.randint(0, brokers.topic.log_end))
        if draw.random() < 0.7:
            reading.poll()
        brokers.runtime.advance(draw.choice((5, 50, 200, 1500)))
        if reading.errors:
            break
    return reading


@SEVERAL
def test_positions_never_pass_over_a_record(seeds: range) -> None:
    """Whatever was cut and written anew: in the end the consumer has read the log as it is."""
    for seed in seeds:
        reading = read_through(seed, EARLIEST, anew=seed % 2 == 0)
        reading.finish()
        assert reading.what_holds() == reading.log
        assert not reading.errors


@SEVERAL
def test_without_a_reset_policy_the_consumer_says_so(seeds: range) -> None:
    """What was given out before the error is a prefix of a log that once was; nothing follows that
    is not the next record of it."""
    for seed in seeds:
        reading = read_through(seed, None, anew=seed % 2 == 0)
        offsets = [offset for offset, _ in reading.read]
        assert offsets == list(range(len(offsets)))
        if not reading.errors:
            reading.finish()
            if not reading.errors:
                assert reading.read == reading.log
        for error in reading.errors:
            assert isinstance(error, (LogTruncationError, TopicRecreatedError))
            assert error.position == len(offsets)
