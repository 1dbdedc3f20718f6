"""Random histories of streams (``tests.spark.histories``), and bugs that they must find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.spark.stream import stream, stream_log, stream_offsets
from tests.spark import histories

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", range(3))
def test_a_history(block, tmp_path):
    for seed in range(1 + 4 * block, 5 + 4 * block):
        histories.run(seed, tmp_path / str(seed))


def _every_life_is_the_same(patch: Any) -> None:
    patch(stream_log.StreamLogView, "is_of", lambda *_: True)


def _the_first_start_is_what_spark_says(patch: Any) -> None:
    patch(stream, "began_from", lambda start, _: stream_offsets.from_json(start))


def _a_cut_loses_the_last_batch_at_most(patch: Any) -> None:
    verdict = stream_log.StreamLogView._verdict

    def trusting(self: Any, mark: Any, proof: Any) -> Any:
        return verdict(self, mark, proof) if proof == mark.proof else stream_log.Verdict.SAME

    patch(stream_log.StreamLogView, "_verdict", trusting)


def _a_log_is_as_long_as_its_listing_was(patch: Any) -> None:
    patch(stream_log.StreamLogView, "_parted", lambda self, mark: min(mark.offset, self.end))


def _transactions_never_abort(patch: Any) -> None:
    patch(stream, "aborted_transactions", lambda _: [])


def _an_open_transaction_is_passed_over(patch: Any) -> None:
    patch(stream_log, "readable_end", lambda *_, **__: 2**62)


def _retention_is_not_named(patch: Any) -> None:
    lost = stream.LogstoreStreamReader._lost

    def silent(self: Any, loss: Any) -> None:
        if "deleted before they were read" not in loss.reason:
            lost(self, loss)

    patch(stream.LogstoreStreamReader, "_lost", silent)


MUTANTS: list[Callable[[Any], None]] = [
    _every_life_is_the_same,
    _the_first_start_is_what_spark_says,
    _a_cut_loses_the_last_batch_at_most,
    _a_log_is_as_long_as_its_listing_was,
    _transactions_never_abort,
    _an_open_transaction_is_passed_over,
    _retention_is_not_named,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_planted_bug_is_found(mutant, tmp_path, monkeypatch):
    mutant(monkeypatch.setattr)
    for seed in range(1, 61):
        directory: Path = tmp_path / str(seed)
        try:
            histories.run(seed, directory)
        except Exception:
            return
    pytest.fail("60 histories did not find it")
