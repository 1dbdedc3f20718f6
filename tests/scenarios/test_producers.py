"""Idempotent producers over leader changes: scenario S-56 on the stage."""

from __future__ import annotations

from replication.common.error_codes import ErrorCode
from replication.simulator.matrix.cluster import ClientAnswer
from tests.scenarios.stage import Stage

REFUSED = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,)


def test_s56_duplicate_sequence_across_a_leader_change() -> None:
    """The last five batches are known again wherever they are sent; an older one is refused."""
    stage = Stage("ABC")

    def send(leader: str, number: int) -> ClientAnswer:
        header = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number - 1}
        return stage.produce(leader, b"%d" % number, **header)

    for number in range(1, 6):
        assert send("A", number).code is ErrorCode.NONE  # suppose that the answer was lost
    stage.kill("A")
    assert stage.leader == "B"
    for number in (1, 2, 3, 4, 5, 5):
        again = send("B", number)
        assert (again.code, again.part.base_offset) == (ErrorCode.NONE, number - 1)
    assert stage.leo("B") == 5
    assert send("B", 6).part.base_offset == 5
    assert send("B", 1).code in REFUSED
    assert stage.leo("B") == 6
    stage.run(450)
    stage.kill("B")
    assert stage.leader == "C"
    assert send("C", 6).part.base_offset == 5
    stage.start("B")
    stage.until_in_sync("BC")
    stage.kill("C")
    assert stage.leader == "B"  # its producers come out of its recovery
    assert send("B", 6).part.base_offset == 5
    assert send("B", 1).code in REFUSED
    assert stage.leo("B") == 6
    stage.finish()
    assert stage.values("A") == [b"1", b"2", b"3", b"4", b"5", b"6", b"last"]
