"""Rescues after random damage, each against the plain model."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from logstore.cli.common.outlook import outlook
from logstore.rescue import PartitionRescue, RescueReport, rescue
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.verify import verify
from tests.faults import engine
from tests.histories.history import Run, history
from tests.histories.rescue_damage import damage
from tests.histories.rescue_model import Truth, problems, read_damaged, read_log
from tests.unit.verify.verify_logs import copy

BROKERS = ["/broker-1", "/broker-2", "/broker-3"]
PARTITIONS = ["orders-0", "orders-1", "payments-0"]
ELECTED = "/broker-2"
TARGET = "/rescued"


@cache
def _original(number: int) -> MemoryStorage:
    """Three brokers' directories, in memory; one of them has a tail that was never committed."""
    storage = MemoryStorage()
    with tempfile.TemporaryDirectory() as directory:
        for path in engine.build(Path(directory), batches=40, seed=number):
            copy(LocalStorage(), path, storage, f"/{Path(path).name}")
    return storage


@cache
def _truth(number: int, partition: str) -> Truth:
    storage = _original(number)
    committed = read_log(storage, f"{ELECTED}/{partition}")
    known = {(batch.first, batch.content) for batch in committed}
    strays = [
        batch
        for broker in BROKERS
        for batch in read_log(storage, f"{broker}/{partition}")
        if (batch.first, batch.content) not in known
    ]
    epochs = [storage.read_file(f"{b}/{partition}/leader-epoch-checkpoint") for b in BROKERS]
    return Truth(tuple(committed), tuple(strays), tuple(epochs))


@history
def run(run: Run) -> None:
    """Damage copies of the directories, rescue, compare."""
    rng = random.Random(run.seed)
    number = 1 + run.seed % 3
    storage = MemoryStorage()
    for broker in BROKERS:
        copy(_original(number), broker, storage, broker)
    brokers = rng.sample(BROKERS, rng.choice((1, 2, 3, 3)))
    if ELECTED not in brokers:
        brokers.append(ELECTED)
    run.trace += damage(rng, storage, brokers, rng.choice((1, 2, 5, 10, 30)))
    run.done.update(kind.split()[0] for kind in run.trace)
    promised = outlook(verify(brokers, storage=storage), brokers, storage=storage)
    report = rescue(brokers, TARGET, storage=storage)
    found = list(_broken((promised and promised.partitions) or [], report))
    for name in PARTITIONS:
        part = next(p for p in report.partitions if f"{p.topic}-{p.partition}" == name)
        damaged = read_damaged(storage, [f"{broker}/{name}" for broker in brokers])
        at = [BROKERS.index(broker) for broker in brokers]
        truth = _truth(number, name)
        truth = truth._replace(epoch_files=tuple(truth.epoch_files[i] for i in at))
        result = read_log(storage, f"{TARGET}/{name}")
        gaps = [(gap.first, gap.next) for gap in part.gaps]
        found += [f"{name}: {line}" for line in problems(truth, damaged, result, gaps)]
        if part.gaps and part.whole:
            found.append(f"{name}: called whole, with gaps")
    run.done["whole" if report.whole else "not whole"] += 1
    assert not found, found


def _broken(promised: list[PartitionRescue], report: RescueReport) -> Iterator[str]:
    """What ``verify`` said of the rescue, and is not so."""
    told = {(part.topic, part.partition): part for part in promised}
    for part in report.partitions:
        said = told.get((part.topic, part.partition))
        if said is None and not part.whole:
            yield f"{part.topic}-{part.partition}: not whole, and not told: {part.gaps}"
        elif said is not None and _numbers(said) != _numbers(part):
            yield f"{part.topic}-{part.partition}: not as told: {_numbers(said)}, {_numbers(part)}"


def _numbers(part: PartitionRescue) -> tuple[object, ...]:
    return part.start, part.end, part.records, part.gaps, part.doubts, part.set_aside
