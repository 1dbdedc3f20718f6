"""Errors of reading with Spark, beside those of ``logstore.common.errors``.

LogstoreError
├── NotALogDirectoryError      a path that holds neither partitions nor segments
├── DuplicatePartitionError    several brokers have the partition, and none was chosen
├── ListingOutdatedError       the log changed since it was listed, and is listed again
├── TierRefusedError           a tier and a log directory are not of one log
├── DataLossError              requested records do not exist, or no longer
└── ExportRefusedError         a table cannot take what the topic has

Arguments are plain values: an error raised in a worker reaches the driver by pickle. Paths are kept
without the credentials of a URI.
"""

from __future__ import annotations

from checkpoints.printable import printable
from logstore.common.errors import LogstoreError
from logstore.storage.uri import shown


class NotALogDirectoryError(LogstoreError):
    def __init__(self, path: str, reason: str) -> None:
        path = shown(path)
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def _text(self) -> str:
        path = printable(self.path)
        return f"{path} is no log directory and no partition's directory: {self.reason}"


class DuplicatePartitionError(LogstoreError):
    """``places`` lists ``(broker, directory)`` of every copy."""

    def __init__(self, topic: str, partition: int, places: tuple[tuple[str, str], ...]) -> None:
        places = tuple((shown(broker), shown(directory)) for broker, directory in places)
        super().__init__(topic, partition, places)
        self.topic, self.partition, self.places = topic, partition, places

    def _text(self) -> str:
        found = ", ".join(
            f"broker {printable(broker)}: {printable(directory)}"
            for broker, directory in self.places
        )
        return (
            f"{printable(self.topic)}-{self.partition} is there {len(self.places)} times "
            f"({found}); read one copy with the option broker, an id or a path of these, or every "
            "copy with replicas=all"
        )


class ListingOutdatedError(LogstoreError):
    """The log changed since it was listed.

    The listing is repeated; a user sees this error only if the log keeps changing.
    """

    def __init__(self, path: str) -> None:
        path = shown(path)
        super().__init__(path)
        self.path = path

    def _text(self) -> str:
        return f"{printable(self.path)} changed since it was listed"


class DataLossError(LogstoreError):
    """Offsets ``[start, end)`` of ``path``, a partition's directory or a segment, cannot be read.

    With the option failOnDataLoss=false reading continues with the records that exist.
    """

    def __init__(self, path: str, start: int, end: int, reason: str) -> None:
        path = shown(path)
        super().__init__(path, start, end, reason)
        self.path, self.start, self.end, self.reason = path, start, end, reason

    def _text(self) -> str:
        return (
            f"{printable(self.path)}: offsets {self.start} to {self.end}: {self.reason}; "
            "failOnDataLoss=false reads what is there"
        )


class TierRefusedError(LogstoreError):
    """``local`` and ``tier``, two directories of a partition, are not read as one log."""

    def __init__(self, partition: str, local: str, tier: str, reason: str) -> None:
        local, tier = shown(local), shown(tier)
        super().__init__(partition, local, tier, reason)
        self.partition, self.local, self.tier, self.reason = partition, local, tier, reason

    def _text(self) -> str:
        return (
            f"{printable(self.partition)}: {printable(self.local)} and {printable(self.tier)} are "
            f"not one log: {self.reason}"
        )


class ExportRefusedError(LogstoreError):
    """``table``, a directory, is not exported to. What it has stays as it is."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table, self.reason = table, reason

    def _text(self) -> str:
        return f"nothing was exported to {printable(self.table)}: {printable(self.reason)}"
