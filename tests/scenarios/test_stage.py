"""The stage itself."""

from __future__ import annotations

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchRequest
from tests.scenarios.stage import Stage


@pytest.mark.parametrize("chance", [False, True])
def test_a_script_gives_the_same_run_again(chance: bool) -> None:
    """I-25."""

    def run() -> str:
        stage = Stage("ABC", seed=5, chance=chance)
        stage.fill("A", 3)
        stage.power_loss("A", mode="random")
        stage.finish()
        return stage.scheduler.trace_hash

    assert run() == run()


def test_what_is_held_is_delivered_repeated_or_lost() -> None:
    stage = Stage("AB")
    fetches = stage.hold("B", "A", FetchRequest)
    stage.run(450)
    stage.fill("A", 2)
    assert (stage.leo("B"), stage.hw("A")) == (0, 0)
    assert isinstance(fetches.repeat(), FetchRequest)
    assert (stage.leo("B"), stage.hw("A")) == (2, 0)
    fetches.deliver()  # the same once more changes nothing
    assert (stage.leo("B"), stage.hw("A")) == (2, 0)
    fetches.drop()
    stage.run(150)
    assert stage.hw("A") == 0
    fetches.deliver()
    assert stage.hw("A") == 2
    fetches.end()
    stage.finish()


def test_the_epilogue_finds_pending_reason() -> None:
    """I-1: a record that was acknowledged, and that nobody holds."""
    stage = Stage("AB")
    assert stage.produce("A", b"m").code is ErrorCode.NONE
    stage.history.acknowledged[stage.tp][0] = b"another"
    with pytest.raises(AssertionError, match="I-1"):
        stage.finish()


def test_a_violation_stops_the_script() -> None:
    stage = Stage("AB")
    stage.fill("A", 1)
    stage.power_loss("A", "B")
    with pytest.raises(AssertionError, match="I-2"):
        stage.start("B")
