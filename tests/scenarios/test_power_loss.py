"""Power fails everywhere at once: scenario S-28 on the stage.

``python -m tests.scenarios.test_power_loss 200`` runs the first 200 seeds in both modes, and says
how much was lost with flush=os.
"""

from __future__ import annotations

import argparse
import random
from typing import NamedTuple

import pytest

from checkpoints.types import TopicPartition
from replication.simulator.matrix.cluster import ClientAnswer
from tests.scenarios.stage import Stage


class Loss(NamedTuple):
    acknowledged: int
    lost: int


def coordinated_power_loss(seed: int, flush: str, partitions: int = 20) -> Loss:
    """Load on all partitions; power fails within 100 ms, in the middle of writes; brokers return in
    any order, up to 30 s apart. Asserts what holds in either mode."""
    rng = random.Random(f"power {seed}")
    lossy = flush == "os"
    stage = Stage(
        "ABC",
        min_isr=2,
        flush=flush,
        partitions=partitions,
        seed=seed,
        chance=True,
        exempt=("I-1", "I-2") if lossy else (),
    )
    answers: list[ClientAnswer] = []

    def load() -> None:
        for tp in stage.tps:
            leader = stage.leader_of(tp)
            if leader and stage.is_up(leader):
                answers.append(stage.produce(leader, b"%d" % len(answers), tp=tp, wait_ms=0))

    for _ in range(rng.randint(3, 6)):
        load()
        stage.run(rng.randint(5, 200))
    for name in rng.sample("ABC", 3):
        stage.power_loss_in_write(name, rng.randint(1, 40))
    for _ in range(5):
        load()
        stage.run(20)
    for name in "ABC":  # whose disk was not written in the 100 ms
        if stage.is_up(name):
            stage.power_loss(name, noticed=False, mode="random")
    for name in rng.sample("ABC", 3):
        stage.run(rng.randint(0, 30_000))
        stage.start(name)
    stage.finish()
    return _loss(stage)


def _loss(stage: Stage) -> Loss:
    acknowledged = lost = 0
    for tp in stage.tps:
        told = stage.history.acknowledged.get(tp, {})
        held = _held(stage, tp)
        gone = [offset for offset, value in told.items() if held.get(offset) != value]
        kept = [offset for offset, value in told.items() if held.get(offset) == value]
        ours = [offset for offset in kept if told[offset] != b"last"]
        assert not gone or max(ours, default=-1) < min(gone), "not a suffix"
        acknowledged, lost = acknowledged + len(told), lost + len(gone)
    return Loss(acknowledged, lost)


def _held(stage: Stage, tp: TopicPartition) -> dict[int, bytes]:
    log = stage.log(stage.leader_of(tp), tp)
    return {record.offset: bytes(record.value or b"") for record in log.records()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("flush", ["ack", "os"])
def test_s28_coordinated_power_loss(flush: str, seed: int) -> None:
    """With flush=ack nothing that was acknowledged is lost; with flush=os a suffix may be."""
    loss = coordinated_power_loss(seed, flush, partitions=2)
    assert loss.acknowledged
    assert not loss.lost or flush == "os"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_s28_coordinated_power_loss_of_many_partitions(seed: int) -> None:
    loss = coordinated_power_loss(seed, "ack")
    assert loss.acknowledged > 20
    assert loss.lost == 0


def main(seeds: int) -> None:
    for flush in ("ack", "os"):
        losses = [coordinated_power_loss(seed, flush) for seed in range(seeds)]
        acknowledged, lost = (sum(column) for column in zip(*losses, strict=True))
        runs = sum(loss.lost > 0 for loss in losses)
        print(f"flush={flush}: {lost} of {acknowledged} acknowledged lost, in {runs} of {seeds}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.test_power_loss")
    parser.add_argument("seeds", type=int, nargs="?", default=20)
    main(parser.parse_args().seeds)
