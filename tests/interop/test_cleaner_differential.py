"""Kafka's own cleaner and ours on the same random histories."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cleaner_differential as differential
import cleaner_histories
import kafka_tools
import pytest
import reading
from cleaner_differential import Cleaner
from cleaner_histories import TOPIC, History
from kafka_cleaner import KafkaCleaner

from logstore.verify import Severity, verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cleaner(kafka: str) -> Iterator[KafkaCleaner]:
    """Return a process with Kafka's cleaner for the tests of this file."""
    with KafkaCleaner() as process:
        yield process


# --- the comparison finds what a cleaner does wrong ----------------------------------------------


def _sooner(kafka: Cleaner) -> Cleaner:
    """Tombstones and markers go before their horizon."""
    return lambda root, now_ms, history: kafka(root, now_ms + 86_500_000, history)


def _horizon(kafka: Cleaner) -> Cleaner:
    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        config = {**history.config, "delete.retention.ms": 12_345}
        return kafka(root, now_ms, replace(history, config=config))

    return clean


def _no_merge(kafka: Cleaner) -> Cleaner:
    """No segment is merged with the next one."""

    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        config = {**history.config, "segment.bytes": 500}
        return kafka(root, now_ms, replace(history, config=config))

    return clean


def _forgetful(kafka: Cleaner) -> Cleaner:
    """The last batch of a producer goes with its records."""

    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        settings = replace(history.settings, producer_expiration_ms=1)
        return kafka(root, now_ms, replace(history, settings=settings))

    return clean


def _no_checkpoint(kafka: Cleaner) -> Cleaner:
    """The checkpoint is lost, so all of the log is dirty again."""

    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        (root / differential.CHECKPOINT).unlink(missing_ok=True)
        return kafka(root, now_ms, history)

    return clean


def _no_aborts(kafka: Cleaner) -> Cleaner:
    """The index of aborted transactions is not carried over."""

    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        passes = kafka(root, now_ms, history)
        for path in (root / f"{TOPIC}-0").glob("*.txnindex"):
            path.unlink()
        return passes

    return clean


MUTANTS = (_sooner, _horizon, _no_merge, _forgetful, _no_checkpoint, _no_aborts)
MUTANT_SEEDS = (3, 0, 1, 4)
SEEDS = range(9)
MODEL_SEEDS = range(4)
VERIFIED_SEEDS = (0, 3, 4)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.lstrip("_"))
def test_a_wrong_cleaner_is_found(
    mutant: Callable[[Cleaner], Cleaner], cleaner: KafkaCleaner
) -> None:
    """Each is Kafka's own, misled: all else is right, so nothing but the error can be found."""
    wrong = mutant(differential.kafka_cleaner(cleaner))
    for seed in MUTANT_SEEDS:
        _, found = differential.run_seeds([seed], cleaner, wrong)
        if found:
            assert re.match(r"seed \d+, round \d+, ", found[0])
            return
    pytest.fail("nothing was found")


def test_kafka_agrees_with_itself(cleaner: KafkaCleaner) -> None:
    """Nothing in the comparison depends on anything but the history."""
    _, found = differential.run_seeds(range(2), cleaner, differential.kafka_cleaner(cleaner))
    assert found == []


def test_the_plain_model_is_as_kafka(cleaner: KafkaCleaner) -> None:
    """Where there is no Kafka, the model stands for it."""
    with differential.working_directory() as directory:
        for seed in MODEL_SEEDS:
            history = cleaner_histories.make(seed)
            assert differential.check_model(history, cleaner, directory / str(seed)) > 0


@pytest.mark.essential
def test_ours_is_as_kafka(cleaner: KafkaCleaner) -> None:
    """Records, batches, files, producers and checkpoints; and each goes on from the other.

    ``python tests/interop/cleaner_differential.py`` runs as many histories as you like.
    """
    seen, found = differential.run_seeds(SEEDS, cleaner, differential.our_cleaner)
    assert found == []
    unseen = [what for what in differential.Seen.KINDS if not seen.counts[what]]
    assert unseen == []


def test_verifiers_are_content_with_both(cleaner: KafkaCleaner) -> None:
    """Kafka's dump tool and look-ups through its indexes, and our ``verify``, on what is left."""
    logs: list[Path] = []
    with differential.working_directory() as directory:
        for name, clean in (
            ("Kafka", differential.kafka_cleaner(cleaner)),
            ("ours", differential.our_cleaner),
        ):
            for seed in VERIFIED_SEEDS:
                root = directory / f"{name}-{seed}"
                history = cleaner_histories.make(seed)
                for each in history.rounds:
                    cleaner_histories.write(root, each.steps, history)
                    clean(root, each.clean_at_ms, history)
                report = verify([root])
                findings = [f for f in report.findings if f.severity is not Severity.INFO]
                assert findings == []
                assert report.unusable == []
                logs += reading.sorted_files([root / f"{TOPIC}-0"], ".log", ".snapshot")
        assert kafka_tools.index_sanity(logs) == []
