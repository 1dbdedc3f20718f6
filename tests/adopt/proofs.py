"""A directory that a real Kafka wrote, served by that Kafka and by ``logstore serve --adopt``."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.adopt.adopted import Adopted, digest
from tests.adopt.comparison import Comparison, compare
from tests.adopt.kafkas import QUIET, Node
from tests.adopt.reading import Picture, picture


def what_kafka_shows(node: Node, directory: Path) -> Picture:
    """The picture of a copy of the node's files, served by its own release."""
    copy = node.copied_to(directory, QUIET)
    try:
        copy.start()
        return picture(copy.bootstrap)
    finally:
        copy.end()


def read_only(node: Node, theirs: Picture, directory: Path) -> Comparison:
    """Serve a copy without changing a byte of it, which is checked, and compare."""
    directory.mkdir()
    data = directory / "data"
    shutil.copytree(node.log_dir, data)
    (data / ".lock").unlink(missing_ok=True)
    before = digest(data)
    with Adopted(directory / "serve.log", "--adopt", data, "--read-only") as served:
        ours = picture(served.bootstrap)
    after = digest(data)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert not changed, f"changed: {sorted(changed)[:10]}"
    return compare(theirs, ours, node.name)
