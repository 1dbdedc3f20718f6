"""A directory that a real Kafka wrote, served by that Kafka and by ``logstore serve --adopt``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from logstore.verify import verify
from replication.adopt import COORDINATOR, read_cluster_metadata
from replication.adopt.home import ADOPTED
from replication.coordination.journal import FILE_NAME
from tests.adopt.adopted import Adopted, digest
from tests.adopt.comparison import ENDED, GIVEN_BACK, Comparison, Difference, compare
from tests.adopt.going_on import go_on
from tests.adopt.kafkas import QUIET, Node
from tests.adopt.reading import Picture, ongoing, picture
from tests.support.until import until


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
    _has_epochs_above(ours, node)
    return compare(theirs, ours, node.name)


SETTINGS = {
    "log.retention.ms": -1,  # as the real broker had it
    "log.cleaner.enable": "false",  # nothing is compacted while it is compared
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
KEEPING = [f"--config={name}={value}" for name, value in SETTINGS.items()]


def _has_epochs_above(ours: Picture, node: Node) -> None:
    """Above all that the controllers of the node decided, where they say it."""
    image = read_cluster_metadata(str(node.log_dir))
    for topic in () if image is None else image.topics.values():
        for number, part in topic.partitions.items():
            place = f"partition/{topic.name}/{number}"
            is_led, epoch = ours[f"{place}/error"] == 0, ours[f"{place}/leader epoch"]
            assert epoch > part.leader_epoch or not is_led, f"{place}: {epoch}"


class Writable(NamedTuple):
    """Comparisons of what was adopted with Kafka's picture, of a start after that one with the one
    before it, of a start after ``kill -9``, and of Kafka itself on what we left."""

    adopted: Comparison
    again: Comparison
    after_kill: Comparison
    given_back: Comparison

    def text(self) -> str:
        return "\n".join(f"- {name}: {each.text()}" for name, each in self._asdict().items())

    @property
    def wrong(self) -> list[Difference]:
        return [one for each in self for one in each.wrong]


def writable(node: Node, theirs: Picture, directory: Path) -> Writable:
    """Adopt a copy for good, go on with it, stop, start, kill, start; then Kafka has it again."""
    copy = node.copied_to(directory / "node", QUIET)
    home, log = directory / "home", directory / "serve.log"
    with Adopted(log, "--adopt", copy.log_dir, "--dir", home, *KEEPING) as served:
        until(lambda: not ongoing(served.bootstrap), "open transactions are ended")
        first = picture(served.bootstrap)
        _has_epochs_above(first, node)
        go_on(served.bootstrap, theirs)
        second = picture(served.bootstrap)
    again = Adopted(directory / "again.log", "--dir", home, *KEEPING)
    with again:
        third = picture(again.bootstrap)
        again.kill()
    with Adopted(directory / "killed.log", "--dir", home, *KEEPING) as served:
        fourth = picture(served.bootstrap)
    report = verify([copy.log_dir])
    assert report.clean, [str(each) for each in report.findings]
    try:
        copy.start()
        given_back = picture(copy.bootstrap)
    finally:
        copy.end()
    return Writable(
        compare(theirs, first, node.name, ENDED),
        compare(second, third, node.name),
        compare(third, fourth, node.name),
        compare(given_back, fourth, node.name, GIVEN_BACK),
    )


def killed_while_adopting(node: Node, theirs: Picture, directory: Path) -> Comparison:
    """``kill -9`` at each step of an adoption, and the same command once more."""
    data = directory / "data"
    shutil.copytree(node.log_dir, data)
    (data / ".lock").unlink(missing_ok=True)
    before = digest(data)
    home, log = directory / "home", directory / "serve.log"
    tree = home / COORDINATOR
    steps: tuple[Callable[[], bool], ...] = (
        home.exists,
        (home / ADOPTED).exists,
        tree.exists,
        lambda: any(tree.glob("*")),
    )
    adopting = Adopted(log, "--adopt", data, "--dir", home, *KEEPING)
    for number, step in enumerate(steps):
        process = adopting.launch()
        until(lambda s=step, p=process: s() or p.poll() is not None, f"step {number}")
        adopting.kill()
        if not (tree / FILE_NAME).exists():
            assert digest(data) == before, f"step {number} changed the directory"
    with adopting as served:
        until(lambda: not ongoing(served.bootstrap), "open transactions are ended")
        return compare(theirs, picture(served.bootstrap), node.name, ENDED)
