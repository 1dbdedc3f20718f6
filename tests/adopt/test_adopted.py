"""What a real Kafka wrote is what clients see of ``logstore serve --adopt``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adopt import proofs
from tests.adopt.conftest import SEED
from tests.adopt.histories import PLANS, History
from tests.adopt.kafkas import Node
from tests.adopt.reading import Picture

pytestmark = pytest.mark.slow


@pytest.mark.essential
def test_read_only_it_is_served_as_it_is(node: Node, theirs: Picture, tmp_path: Path):
    """Records, offsets, ids, configs, groups, transactions; and no file is touched."""
    found = proofs.read_only(node, theirs, tmp_path / "read-only")
    assert not found.wrong, found.text()
    assert found.same > 800


@pytest.mark.essential
def test_for_good_it_goes_on_and_kafka_can_have_it_back(
    node: Node, theirs: Picture, tmp_path: Path
):
    found = proofs.writable(node, theirs, tmp_path)
    assert not found.wrong, found.text()


def test_an_adoption_that_is_killed_can_be_repeated(node: Node, theirs: Picture, tmp_path: Path):
    found = proofs.killed_while_adopting(node, theirs, tmp_path)
    assert not found.wrong, found.text()


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PLANS if name != "short"])
def test_directories_of_other_releases_and_longer_lives(name: str, tmp_path: Path):
    node = History(PLANS[name], tmp_path / "node", SEED).run()
    theirs = proofs.what_kafka_shows(node, tmp_path / "kafka")
    for found in (
        proofs.read_only(node, theirs, tmp_path / "read-only"),
        proofs.writable(node, theirs, tmp_path / "writable"),
    ):
        assert not found.wrong, found.text()
