"""The partitions of a log directory, by the names in it: nothing is opened or locked."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import NoReturn

from checkpoints.printable import printable
from logstore.cli.common.exits import fail
from logstore.common.errors import InvalidTopicError
from logstore.common.suggestions import or_meant
from logstore.format import filenames
from logstore.storage.local import LocalStorage


def topics_of(directory: str) -> dict[str, list[int]]:
    """The partitions of each topic, in order; without those that are being deleted or moved."""
    found: dict[str, list[int]] = {}
    for entry in LocalStorage().scan_dir(directory):
        with suppress(InvalidTopicError):
            parsed = filenames.parse_partition_dir(entry.name) if entry.is_dir else None
            if parsed is not None and not parsed.suffix:
                found.setdefault(parsed.topic_partition.topic, []).append(
                    parsed.topic_partition.partition
                )
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def partitions_of(directory: str, topic: str) -> list[int]:
    """The partitions of a topic that is there; otherwise the command ends, and says so."""
    topics = topics_of(directory)
    return topics[topic] if topic in topics else no_topic(directory, topic, topics)


def no_topic(directory: str, topic: str, topics: Collection[str]) -> NoReturn:
    text = f"{printable(directory)}: there is no topic {topic!r} in it"
    fail(or_meant(text, topic, topics))
