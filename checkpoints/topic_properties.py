"""``topic.properties``: the configuration of a topic, in the directory of each of its partitions.

Java properties text::

    # Configuration of the topic
    revision=2
    flush.ms=1000
    retention.ms=-1

It lies beside the records, so it is deleted with the partition, and a later topic of the same name
does not inherit it. Kafka ignores the file, as it ignores every unknown name. ``revision`` counts
the changes: after a crash in the middle of a change the highest is the newest. In number 0 are only
a topic's overrides, while the defaults that its broker had are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoints.checkpoint_file import MAX_I64, CheckpointFile, parse_number
from checkpoints.meta_properties import escape, parse_properties

TOPIC_PROPERTIES = "topic.properties"
_REVISION = "revision"
OVERRIDES_ALONE = 0
"""The revision of what a topic names itself: all else was in the ``server.properties`` of a broker,
so nothing may be deleted by a default."""


@dataclass(frozen=True, slots=True)
class TopicProperties:
    """Kafka keys with their values as text, and the number of this change."""

    values: Mapping[str, str] = field(default_factory=dict)
    revision: int = 1

    def encode(self) -> bytes:
        """The content of the file.

        Raises:
            ValueError: the revision is among the keys, or is out of range.
        """
        if _REVISION in self.values or not 0 <= self.revision <= MAX_I64:
            raise ValueError(f"{self} has no place in {TOPIC_PROPERTIES}")
        lines = [f"{key}={escape(value)}\n" for key, value in sorted(self.values.items())]
        head = f"# Configuration of the topic\n{_REVISION}={self.revision}\n"
        return (head + "".join(lines)).encode("ascii")


class TopicPropertiesFile(CheckpointFile):
    """The file of one partition directory; it must be on disk before the first record."""

    __slots__ = ()

    size_max = 1 << 20

    def read(self) -> TopicProperties | None:
        """The content, or ``None`` if the file is missing. Keys are not checked.

        Raises:
            MalformedCheckpointError: it is not properties text, or has no revision.
            CheckpointFailedError: the medium refused.
        """
        data = self._load()
        if data is None:
            return None
        values = {key: entry[0] for key, entry in parse_properties(self.path, data).items()}
        revision = parse_number(values.pop(_REVISION, "").encode(), MAX_I64)
        if revision is None:
            raise self._fault(0, b"", "revision is not an i64 >= 0")
        return TopicProperties(values, revision)

    def write(self, properties: TopicProperties) -> None:
        """Replace the file atomically and durably.

        Raises:
            ValueError: as ``TopicProperties.encode``.
            CheckpointFailedError: the medium refused.
        """
        self._store(properties.encode())
