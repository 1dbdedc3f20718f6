"""Kafka's EpochDrivenReplicationProtocolAcceptanceTest under its names (cases 131 to 135), with
whole brokers on a stage (``tests.scenarios.stage``): logs are equal byte by byte after restarts and
losses of power, which no unit test has."""

from __future__ import annotations

import pytest

from logstore.format.batch import encode_batch
from logstore.format.reader import iter_batches
from logstore.storage.memory import MemoryStorage
from replication.common.messages import ProducePartition, ProduceRequest
from replication.simulator.world.scheduler import START_WALL_MS
from tests.scenarios.stage import Stage

GZIP = 1


def bounce(stage: Stage, name: str) -> None:
    """A clean restart; it is in sync again afterwards."""
    stage.stop(name)
    stage.start(name)
    stage.until_in_sync("AB")


def latest_epoch_of_records(stage: Stage, name: str) -> int:
    return [batch.leader_epoch for batch in iter_batches(contents(stage, name))][-1]


def contents(stage: Stage, name: str) -> bytes:
    """All segment files of a replica, one after the other."""
    disk: MemoryStorage = stage.machine(name).disk
    segments = stage.log(name).segments
    return b"".join(disk.read_file(segment.log_path)[: segment.size] for segment in segments)


def offsets(data: bytes) -> list[int]:
    return [o for b in iter_batches(data) for o in range(b.base_offset, b.last_offset + 1)]


def compressed(stage: Stage, name: str, count: int) -> None:
    """One batch of ``count`` records, which cannot be cut in the middle."""
    records = [(None, b"%d" % n) for n in range(count)]
    batch = bytes(encode_batch(records, compression=GZIP, default_timestamp=START_WALL_MS))
    request = ProduceRequest(1, 500, (ProducePartition(stage.tp, batch),))
    end = stage.leo(name)
    stage.ask(name, request)
    assert stage.leo(name) == end + count


class TestEpochDrivenReplicationProtocolAcceptance:
    def test_should_follow_leader_epoch_basic_workflow(self) -> None:
        """131. The epoch goes with the records: a follower learns of it by the first of them."""
        stage = Stage("AB")
        stage.fill("A", 1)
        assert [latest_epoch_of_records(stage, name) for name in "AB"] == [0, 0]
        assert stage.runs("A") == stage.runs("B") == [(0, 0)]
        bounce(stage, "B")  # which is no change of leadership
        stage.fill("A", 1)
        assert stage.runs("A") == stage.runs("B") == [(0, 0)]
        bounce(stage, "A")
        first = stage.epoch
        assert (stage.leader, first > 0) == ("B", True)
        assert stage.runs("B") == [(0, 0), (first, 2)]
        assert stage.runs("A") == [(0, 0)]
        stage.fill("B", 1)
        assert stage.runs("A") == stage.runs("B") == [(0, 0), (first, 2)]
        assert [latest_epoch_of_records(stage, name) for name in "AB"] == [first, first]
        bounce(stage, "B")
        second = stage.epoch
        assert (stage.leader, second > first) == ("A", True)
        assert stage.runs("A") == [(0, 0), (first, 2), (second, 3)]
        assert stage.runs("B") == [(0, 0), (first, 2)]
        stage.fill("A", 1)
        assert stage.runs("A") == stage.runs("B") == [(0, 0), (first, 2), (second, 3)]
        stage.finish()

    def test_should_not_allow_divergent_logs(self) -> None:
        """132. Both stop; A comes back first, without its last records, and takes other ones."""
        stage = Stage("BA", exempt=("I-1", "I-2"))
        stage.fill("B", 5)
        stage.flush("A", "B")
        stage.fill("B", 5)
        stage.flush("B")
        stage.power_loss("B", "A")
        stage.start("A")
        assert (stage.leader, stage.leo("A")) == ("A", 5)
        for n in range(10):
            stage.produce("A", b"another %d" % n, acks=1)
        stage.start("B")
        stage.until_quiet()
        assert contents(stage, "A") == contents(stage, "B")
        stage.finish()
        assert contents(stage, "A") == contents(stage, "B")

    def test_offsets_should_not_go_backwards(self) -> None:
        """133 (KAFKA-3919). The follower's log ends in the middle of the leader's batch."""
        stage = Stage("BA", exempt=("I-1", "I-2"))
        stage.fill("B", 20)
        stage.flush("A", "B")
        stage.fill("B", 20)
        stage.flush("B")
        stage.power_loss("B", "A")
        stage.start("A")
        assert (stage.leader, stage.leo("A")) == ("A", 20)
        for _ in range(2):
            compressed(stage, "A", 77)
        stage.start("B")
        stage.until_quiet()
        for name in "AB":
            assert offsets(contents(stage, name)) == list(range(20 + 2 * 77))
        assert contents(stage, "A") == contents(stage, "B")
        stage.finish()

    @pytest.mark.slow
    def test_should_survive_fast_leader_change(self) -> None:
        """134. Leader and follower are restarted again and again; nothing is lost or differs."""
        stage = Stage("AB")
        written = []
        for round_ in range(5):
            for name in dict.fromkeys((stage.leader, "A", "B")):
                for n in range(3):
                    value = b"%d %s %d" % (round_, name.encode(), n)
                    stage.produce(stage.leader, value)
                    written.append(value)
                bounce(stage, name)
        stage.until_quiet()
        assert contents(stage, "A") == contents(stage, "B")
        assert stage.values("A") == written
        assert len(stage.runs("A")) >= 5
        stage.finish()

    @pytest.mark.parametrize("rule", ["fetch", "epoch"])
    def test_logs_should_not_diverge_on_unclean_leader_elections(self, rule: str) -> None:
        """135 (KIP-279). Each of the two leads in turn while the other is down."""
        stage = Stage("AB", unclean=True, truncation=rule, exempt=("I-1", "I-2"))
        stage.fill("A", 10)
        stage.stop("B")
        stage.fill("A", 2)
        for leader, other, count in (("B", "A", 1), ("A", "B", 2), ("B", "A", 3), ("A", "B", 4)):
            if stage.is_up(other):
                stage.stop(other)
            stage.start(leader)
            assert stage.leader == leader
            stage.fill(leader, count)
            stage.flush(leader)
        stage.start("B")
        stage.until_quiet()
        assert contents(stage, "A") == contents(stage, "B")
        assert stage.runs("A") == stage.runs("B")
        stage.finish()
