"""What a user of a log sees, and what is for managers and replicas."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import logstore
from logstore.log import PartitionLog, ReplicaLog
from tests.support.cases import for_each

LOG = Path(logstore.__file__).parent / "log"
LARGEST = 420


@for_each(
    "name",
    [
        "append_as_follower",
        "assign_epoch",
        "end_offset_for_epoch",
        "crash",
        "mark_failed",
        "update_high_watermark",
        "truncate_fully_and_start_at",
        "check_invariants",
    ],
)
def test_what_only_replicas_need_is_out_of_sight(name: str) -> None:
    assert not hasattr(PartitionLog, name)
    assert hasattr(ReplicaLog, name)


def test_opening_gives_the_class_that_was_asked(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "orders-0") as log:
        assert type(log) is PartitionLog
        assert repr(log) == f"PartitionLog({tmp_path}/orders-0, [0, 0))"
    with ReplicaLog.open(tmp_path / "orders-0") as replica:
        assert type(replica) is ReplicaLog


@pytest.mark.parametrize("name", ["state", "reads", "partition_log", "replica"])
def test_no_class_is_too_long_to_read(name: str) -> None:
    for node in ast.parse((LOG / f"{name}.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno < LARGEST
