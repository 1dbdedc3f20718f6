"""What to mirror, and how fast."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from logstore.common.errors import ConfigError
from replication.common.config import ReplicationConfig
from replication.common.internal_topics import INTERNAL_TOPICS

SHORTEST_INTERVAL_MS = 100


def _large_fetches() -> ReplicationConfig:
    """A consumer's answer has up to 50 MiB, and a fetch of each partition grows to 4 MiB."""
    return ReplicationConfig(
        replica_fetch_response_max_bytes=50 << 20,
        num_replica_fetchers=2,
        replica_fetch_wait_max_ms=1000,  # 1,000 idle partitions take half as much as with 500
    )


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """
    Attributes:
        topics: regular expressions; a topic is mirrored if one of them matches all of its name.
            Without any, all topics are.
        internal: mirror the topics in which groups and transactions are kept, whatever ``topics``
            says: a promoted mirror needs them.
        keep_deleted: keep what the source deletes.
        rate_bytes_per_s: of records; None for no limit.
        metadata_interval_ms: after which the source is asked again for new topics, and partitions
            that failed are tried again. When a leader changes it is asked at once.
        configs_interval_ms: after which configurations of topics are asked for again.
        silence_ms: after which a partition has failed whose leader does not answer, or refuses.
        replication: of the fetcher: sizes, waits, pauses and the number of connections a broker.

    Raises:
        ConfigError: a pattern is no regular expression, or a number is out of its bounds.
    """

    topics: tuple[str, ...] = ()
    internal: bool = True
    keep_deleted: bool = False
    rate_bytes_per_s: float | None = None
    metadata_interval_ms: int = 30_000
    configs_interval_ms: int = 300_000
    silence_ms: int = 60_000
    replication: ReplicationConfig = field(default_factory=_large_fetches)

    def __post_init__(self) -> None:
        for pattern in self.topics:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"topics {pattern!r}: {error}") from None
        if self.rate_bytes_per_s is not None and not self.rate_bytes_per_s > 0:
            raise ConfigError(f"a rate of {self.rate_bytes_per_s} bytes a second mirrors nothing")
        if min(self.metadata_interval_ms, self.configs_interval_ms) < SHORTEST_INTERVAL_MS:
            raise ConfigError(f"an interval is below {SHORTEST_INTERVAL_MS} ms")

    def choice(self) -> Callable[[str], bool]:
        """Whether a topic is mirrored, by its name."""
        patterns = [re.compile(pattern) for pattern in self.topics]

        def is_chosen(topic: str) -> bool:
            if topic in INTERNAL_TOPICS:
                return self.internal
            return not patterns or any(pattern.fullmatch(topic) for pattern in patterns)

        return is_chosen

    def unmatched(self, topics: Iterable[str]) -> tuple[str, ...]:
        """The patterns that match none of some topics."""
        names = [*topics] if self.topics else []
        return tuple(
            pattern
            for pattern in self.topics
            if not any(re.fullmatch(pattern, name) for name in names)
        )

    def fetching(self) -> ReplicationConfig:
        """The configuration of the fetcher: an answer has no more than the rate allows a second."""
        rate, config = self.rate_bytes_per_s, self.replication
        if rate is None:
            return config
        most = max(1, min(int(rate), config.replica_fetch_response_max_bytes))
        return replace(
            config,
            replica_fetch_response_max_bytes=most,
            replica_fetch_max_bytes=min(most, config.replica_fetch_max_bytes),
        )


__all__ = ["MirrorConfig"]
