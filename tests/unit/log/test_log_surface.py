"""What a user of a log sees, and what is in the parts for managers and replicas."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import logstore
from logstore.log import PartitionLog
from tests.support.cases import for_each

LOG = Path(logstore.__file__).parent / "log"
LINES, METHODS = 500, 40


@for_each(
    "part, name",
    [
        ("replica", "append_as_follower"),
        ("replica", "update_high_watermark"),
        ("epochs", "end_offset_for"),
        ("maintenance", "truncate_fully_and_start_at"),
        ("producers", "begin_verification"),
    ],
)
def test_what_only_replicas_need_is_in_a_part(tmp_path: Path, part: str, name: str) -> None:
    with PartitionLog.open(tmp_path / "orders-0") as log:
        assert not hasattr(log, name)
        assert callable(getattr(getattr(log, part), name))
        assert repr(log) == f"PartitionLog({tmp_path}/orders-0, [0, 0))"


@pytest.mark.parametrize("path", sorted(LOG.rglob("*.py")), ids=lambda path: path.stem)
def test_no_class_is_too_long_to_read(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno < LINES, node.name
            assert sum(isinstance(each, ast.FunctionDef) for each in node.body) <= METHODS, (
                node.name
            )


def test_a_log_inherits_from_nothing() -> None:
    assert inspect.getmro(PartitionLog) == (PartitionLog, object)
