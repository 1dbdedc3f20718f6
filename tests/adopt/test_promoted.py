"""A Kafka starts on what ``logstore promote`` made of a restored directory, and clients go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adopt import proofs
from tests.adopt.kafkas import Node
from tests.adopt.reading import Picture

pytestmark = pytest.mark.slow


@pytest.mark.essential
def test_kafka_and_ours_go_on_with_a_promoted_directory(
    node: Node, theirs: Picture, tmp_path: Path
):
    """X-180, X-181: records, offsets, ids, configurations, groups and producers are as before, and
    transactions that were open are aborted."""
    found = proofs.promoted(node, theirs, tmp_path / "promoted")
    assert not found.wrong, found.text()
    assert found.kafka.same > 800
