"""A directory that a real Kafka wrote, served by that Kafka and by ``logstore serve --adopt``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicProperties, TopicPropertiesFile
from logstore.storage.local import LocalStorage
from logstore.verify import Severity, verify
from replication.adopt import COORDINATOR, read_cluster_metadata
from replication.adopt.home import ADOPTED
from replication.coordination.journal import FILE_NAME
from tests.adopt.adopted import Adopted, digest
from tests.adopt.comparison import ENDED, GIVEN_BACK, RESTARTED, Comparison, Difference, compare
from tests.adopt.going_on import go_on
from tests.adopt.kafkas import QUIET, Node
from tests.adopt.reading import Picture, ongoing, picture
from tests.support.commands import logstore_json
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


class Promoted(NamedTuple):
    """Comparisons of what was promoted with the picture of the Kafka that it was of: served by a
    Kafka, by that Kafka after a clean stop and a start with the picture before it, and by ours."""

    kafka: Comparison
    again: Comparison
    ours: Comparison

    def text(self) -> str:
        return "\n".join(f"- {name}: {each.text()}" for name, each in self._asdict().items())

    @property
    def wrong(self) -> list[Difference]:
        return [one for each in self for one in each.wrong]


def restored(node: Node, directory: Path) -> Node:
    """The node's logs in a directory of its own, as a backup or a mirror has them: with the
    configurations of topics beside the logs, and without anything of the cluster."""
    image = read_cluster_metadata(str(node.log_dir))
    assert image is not None
    copy = node.copied_to(directory, QUIET)
    shutil.rmtree(copy.log_dir / "__cluster_metadata-0")
    (copy.log_dir / "bootstrap.checkpoint").unlink()
    for name, topic in image.topics.items():
        for number in topic.partitions:
            path = copy.log_dir / f"{name}-{number}" / TOPIC_PROPERTIES
            file = TopicPropertiesFile(str(path), LocalStorage())
            file.write(TopicProperties(image.topic_configs(name)))
    return copy


def promoted(node: Node, theirs: Picture, directory: Path) -> Promoted:
    """Promote a copy, start Kafka on it, and go on; another copy is served by ours."""
    directory.mkdir()
    copy = restored(node, directory / "kafka")
    told = logstore_json("promote", str(copy.log_dir), "--for-kafka")
    assert told["promoted"], told
    ends = {(each["transactionalId"], each["result"]) for each in told["ended"]}
    _is_sound(copy.log_dir)
    assert ends == {("left-open", "abort"), ("copier", "abort")}, told["ended"]
    other = directory / "ours"
    shutil.copytree(copy.log_dir, other)
    try:
        copy.start()
        first = picture(copy.bootstrap)
        _has_epochs_above(first, node)
        go_on(copy.bootstrap, theirs)
        second = picture(copy.bootstrap)
        copy.stop()
        lines = copy.log_file.read_text().splitlines()
        complaints = [line for line in lines if _complains(line)]
        assert not complaints, complaints
        assert any("clean shutdown file was found" in line for line in lines)
        copy.start()
        third = picture(copy.bootstrap)
        copy.stop()
    finally:
        copy.end()
    _is_sound(copy.log_dir)
    with Adopted(
        directory / "serve.log", "--adopt", other, "--dir", directory / "home", *KEEPING
    ) as served:
        ours = picture(served.bootstrap)
        _has_epochs_above(ours, node)
        go_on(served.bootstrap, theirs)
    return Promoted(
        compare(theirs, first, node.name, ENDED),
        compare(second, third, node.name, RESTARTED),
        compare(theirs, ours, node.name, ENDED),
    )


def _is_sound(log_dir: Path) -> None:
    report = verify([log_dir])
    wrong = [str(each) for each in report.findings if each.severity is not Severity.INFO]
    assert not wrong, wrong


_USUAL = ("only supported for testing", "Performing controller activation", "is deprecated")


def _complains(line: str) -> bool:
    """Of the loading of logs or metadata, by this Kafka."""
    is_loading = any(word in line for word in ("LogLoader", "LogManager", "Quorum", "Raft"))
    is_usual = any(word in line for word in _USUAL)
    return is_loading and not is_usual and re.search(" (WARN|ERROR|FATAL) ", line) is not None


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
