"""Topics of a log directory.

By the names in it, when nothing is opened or locked; and of one that no broker uses, for
``create``, ``alter`` and ``delete``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from checkpoints.printable import printable
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicPropertiesFile
from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common.exits import fail
from logstore.cli.common.interrupts import Interrupts
from logstore.common.errors import InvalidTopicError
from logstore.common.suggestions import or_meant
from logstore.format import filenames
from logstore.storage.local import LocalStorage
from logstore.storage.uri import open_storage, shown

if TYPE_CHECKING:
    from logstore.manager import LogManager


def partition_dir(name: str) -> filenames.PartitionDir | None:
    """The partition that a directory is named after; None if no log has such a name."""
    with suppress(InvalidTopicError):
        return filenames.parse_partition_dir(name)
    return None


def topics_of(directory: str) -> dict[str, list[int]]:
    """The partitions of each topic, in order; without those that are being deleted or moved."""
    found: dict[str, list[int]] = {}
    storage, path = open_storage(directory)
    for entry in storage.scan_dir(path):
        parsed = partition_dir(entry.name) if entry.is_dir else None
        if parsed is not None and not parsed.suffix:
            tp = parsed.topic_partition
            found.setdefault(tp.topic, []).append(tp.partition)
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def partitions_of(directory: str, topic: str) -> list[int]:
    """The partitions of a topic that is there; otherwise the command ends, and says so."""
    topics = topics_of(directory)
    return topics[topic] if topic in topics else no_topic(directory, topic, topics)


def no_topic(directory: str, topic: str, topics: Collection[str]) -> NoReturn:
    text = f"{printable(shown(directory))}: there is no topic {topic!r} in it"
    fail(or_meant(text, topic, topics))


@contextmanager
def offline(
    directory: str, topic: str | None = None, *, create: bool = False
) -> Iterator[LogManager]:
    """Lock and open the directory. Ctrl-C waits until it is closed cleanly.

    To open it recovers it. So a ``topic`` that has to be there is looked for first.

    Raises:
        LogDirLockedError: a broker or another process has it.
    """
    if not os.path.isdir(directory) and not (create and not os.path.lexists(directory)):
        fail(f"{printable(directory)}: no such directory")
    if os.path.isdir(directory) and not os.access(directory, os.W_OK):
        fail(f"{printable(directory)}: not writable")
    if topic is not None:
        partitions_of(directory, topic)
    from logstore.manager import LogManager, ManagerOwner

    with Interrupts() as interrupts:
        with LogManager(
            [directory], background=False, owner=ManagerOwner(keep_high_watermarks=True)
        ) as manager:
            yield manager
        interrupts.check()


def known(manager: LogManager, directory: str, topic: str) -> list[int]:
    """The partitions of a topic, also those that cannot be opened."""
    unavailable = [tp.partition for tp in manager.unavailable_logs if tp.topic == topic]
    found = sorted([*manager.topics().get(topic, []), *unavailable])
    return found or no_topic(directory, topic, manager.topics())


def stored_config(directory: str, topic: str, partition: int) -> dict[str, str]:
    """The configuration keys that are set for a topic."""
    name = filenames.partition_dir_name(TopicPartition(topic, partition))
    path = os.path.join(directory, name, TOPIC_PROPERTIES)
    stored = TopicPropertiesFile(path, LocalStorage()).read()
    return {} if stored is None else dict(stored.values)


def print_topic(manager: LogManager, topic: str) -> None:
    """Print a topic as JSON: its partitions, and the keys that differ from the defaults."""
    default = manager.config.to_properties()
    config = {
        key: value
        for key, value in manager.topic_config(topic).to_properties().items()
        if value != default[key]
    }
    terminal.print_json({"topic": topic, "partitions": manager.topics()[topic], "config": config})
