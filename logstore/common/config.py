"""Configuration under Kafka's keys, with Kafka's defaults, checked once.

``LogConfig`` holds the topic keys; ``BrokerConfig`` those of a whole set of log directories.
Both take a mapping of Kafka keys (``LogConfig.from_properties({"segment.bytes": "1048576"})``)
or Python names (``LogConfig(segment_bytes=1 << 20)``). The defaults are those of Kafka 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, Self

from logstore.common.errors import ConfigError
from logstore.common.suggestions import unknown

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1
MESSAGE_OVERHEAD = 12  # base offset and length; ``max.message.bytes`` includes them

COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


def kafka_key(
    name: str,
    default: Any,
    low: int | None = None,
    high: int | None = None,
    *,
    secret: bool = False,
) -> Any:
    """A field under Kafka's name. A ``secret`` is not in the repr."""
    return field(default=default, metadata={"key": name, "low": low, "high": high}, repr=not secret)


class Properties:
    """The base of every configuration: reads and checks values by Kafka key."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> Self:
        """Build from Kafka keys; values may be strings as in a properties file.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type or outside its bounds.
        """
        return cls().with_properties(properties)

    def with_properties(self, properties: Mapping[str, object]) -> Self:
        """A copy with some Kafka keys changed. Raises as ``from_properties``."""
        if not properties:
            return self
        known = _specs(type(self))  # type: ignore[arg-type]
        changes: dict[str, Any] = {}
        for key, value in properties.items():
            if key not in known:
                raise unknown("configuration key", key, known)
            spec = known[key]
            changes[spec.name] = _parse(key, value, spec.default)
        return replace(self, **changes)  # type: ignore[type-var]

    def to_properties(self) -> dict[str, str]:
        return {
            f.metadata["key"]: _text(getattr(self, f.name))
            for f in fields(self)  # type: ignore[arg-type]
        }

    def _check(self) -> None:
        for name, key, low, high in _integers(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{key} must be an integer, not {value!r}")
            if low is not None and value < low:
                raise ConfigError(f"{key} = {value} is below its minimum {low}")
            if value > high:
                raise ConfigError(f"{key} = {value} is above its maximum")


@cache
def _specs(kind: type[Properties]) -> dict[str, Field[Any]]:
    """Fields by Kafka key."""
    return {f.metadata["key"]: f for f in fields(kind)}  # type: ignore[arg-type]


@cache
def _integers(kind: type[Properties]) -> tuple[tuple[str, str, int | None, int], ...]:
    """Name, key, minimum and maximum of each field that holds an integer."""
    return tuple(
        (f.name, key, f.metadata["low"], MAX_LONG if high is None else high)
        for key, f in _specs(kind).items()  # type: ignore[arg-type]
        for high in (f.metadata["high"],)
        if isinstance(f.default, int) and not isinstance(f.default, bool)
    )


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _parse(key: str, value: object, default: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int | float):
            if "_" in text:  # only Python accepts this as a number
                raise ValueError
            return int(text) if isinstance(default, int) else float(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{key} = {value!r} is not {_KINDS[type(default)]}") from None
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


@dataclass(frozen=True, slots=True)
class LogConfig(Properties):
    """The keys of one topic. ``*_ms`` are milliseconds, ``*_bytes`` bytes, −1 is "no limit"."""

    segment_bytes: int = kafka_key("segment.bytes", 1 << 30, 14, MAX_INT)
    segment_ms: int = kafka_key("segment.ms", 604_800_000, 1)
    segment_jitter_ms: int = kafka_key("segment.jitter.ms", 0, 0)
    segment_index_bytes: int = kafka_key("segment.index.bytes", 10 << 20, 4, MAX_INT)
    index_interval_bytes: int = kafka_key("index.interval.bytes", 4096, 0, MAX_INT)
    preallocate: bool = kafka_key("preallocate", False)
    flush_messages: int = kafka_key("flush.messages", MAX_LONG, 1)
    flush_ms: int = kafka_key("flush.ms", MAX_LONG, 0)
    retention_bytes: int = kafka_key("retention.bytes", -1)
    retention_ms: int = kafka_key("retention.ms", 604_800_000, -1)
    file_delete_delay_ms: int = kafka_key("file.delete.delay.ms", 60_000, 0)
    cleanup_policy: tuple[str, ...] = kafka_key("cleanup.policy", ("delete",))
    max_message_bytes: int = kafka_key(
        "max.message.bytes", (1 << 20) + MESSAGE_OVERHEAD, 0, MAX_INT
    )
    compression_type: str = kafka_key("compression.type", "producer")
    compression_gzip_level: int = kafka_key("compression.gzip.level", -1, -1, 9)
    compression_lz4_level: int = kafka_key("compression.lz4.level", 9, 1, 17)
    compression_zstd_level: int = kafka_key("compression.zstd.level", 3, -131072, 22)
    message_timestamp_type: str = kafka_key("message.timestamp.type", "CreateTime")
    message_timestamp_before_max_ms: int = kafka_key("message.timestamp.before.max.ms", MAX_LONG, 0)
    message_timestamp_after_max_ms: int = kafka_key("message.timestamp.after.max.ms", 3_600_000, 0)
    delete_retention_ms: int = kafka_key("delete.retention.ms", 86_400_000, 0)
    min_compaction_lag_ms: int = kafka_key("min.compaction.lag.ms", 0, 0)
    max_compaction_lag_ms: int = kafka_key("max.compaction.lag.ms", MAX_LONG, 1)
    min_cleanable_dirty_ratio: float = kafka_key("min.cleanable.dirty.ratio", 0.5)
    min_insync_replicas: int = kafka_key("min.insync.replicas", 1, 1)
    unclean_leader_election_enable: bool = kafka_key("unclean.leader.election.enable", False)
    # Which replicas a quota holds back: ``*``, or ``partition:broker`` pairs.
    leader_throttled_replicas: str = kafka_key("leader.replication.throttled.replicas", "")
    follower_throttled_replicas: str = kafka_key("follower.replication.throttled.replicas", "")

    def __post_init__(self) -> None:
        self._check()
        if isinstance(self.cleanup_policy, str):
            object.__setattr__(self, "cleanup_policy", tuple(self.cleanup_policy.split(",")))
        if self.cleanup_policy == ("",):  # nothing is deleted or compacted, as Kafka 4 allows it
            object.__setattr__(self, "cleanup_policy", ())
        if not set(self.cleanup_policy) <= {"delete", "compact"}:
            raise ConfigError(f"cleanup.policy = {_text(self.cleanup_policy)!r} is not known")
        if self.compression_type not in COMPRESSION_TYPES:
            raise ConfigError(f"compression.type = {self.compression_type!r} is not known")
        if self.compression_gzip_level == 0:
            raise ConfigError("compression.gzip.level = 0 is no level of gzip: −1, or 1 to 9")
        if self.message_timestamp_type not in TIMESTAMP_TYPES:
            raise ConfigError(
                f"message.timestamp.type = {self.message_timestamp_type!r} is not known"
            )
        if not 0 <= self.min_cleanable_dirty_ratio <= 1:
            raise ConfigError("min.cleanable.dirty.ratio must be between 0 and 1")

    @property
    def compact(self) -> bool:
        """``cleanup.policy`` names ``compact``."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """``cleanup.policy`` names ``delete``."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """Age that rolls a segment (F-144)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms


@dataclass(frozen=True, slots=True)
class BrokerConfig(Properties):
    """The keys of a log manager: its periodic tasks, threads and the producers it remembers."""

    num_recovery_threads_per_data_dir: int = kafka_key("num.recovery.threads.per.data.dir", 2, 1)
    log_initial_task_delay_ms: int = kafka_key("log.initial.task.delay.ms", 30_000, 0)
    log_retention_check_interval_ms: int = kafka_key("log.retention.check.interval.ms", 300_000, 1)
    log_flush_scheduler_interval_ms: int = kafka_key("log.flush.scheduler.interval.ms", MAX_LONG, 1)
    log_flush_offset_checkpoint_interval_ms: int = kafka_key(
        "log.flush.offset.checkpoint.interval.ms", 60_000, 0
    )
    log_flush_start_offset_checkpoint_interval_ms: int = kafka_key(
        "log.flush.start.offset.checkpoint.interval.ms", 60_000, 0
    )
    producer_id_expiration_ms: int = kafka_key("producer.id.expiration.ms", 86_400_000, 1)
    producer_id_expiration_check_interval_ms: int = kafka_key(
        "producer.id.expiration.check.interval.ms", 600_000, 1
    )
    log_cleaner_enable: bool = kafka_key("log.cleaner.enable", True)
    log_cleaner_threads: int = kafka_key("log.cleaner.threads", 1, 1, 1024)
    # bytes of all threads together; a key takes 24
    log_cleaner_dedupe_buffer_size: int = kafka_key("log.cleaner.dedupe.buffer.size", 128 << 20, 1)
    log_cleaner_io_buffer_size: int = kafka_key("log.cleaner.io.buffer.size", 512 << 10, 1, MAX_INT)
    # of the offset map, despite its name
    log_cleaner_io_buffer_load_factor: float = kafka_key("log.cleaner.io.buffer.load.factor", 0.9)
    log_cleaner_io_max_bytes_per_second: float = kafka_key(
        "log.cleaner.io.max.bytes.per.second", float("inf")
    )
    log_cleaner_backoff_ms: int = kafka_key("log.cleaner.backoff.ms", 15_000, 0)

    def __post_init__(self) -> None:
        self._check()
        if not 0 < self.log_cleaner_io_buffer_load_factor <= 1:
            raise ConfigError("log.cleaner.io.buffer.load.factor must be above 0, and at most 1")
        if not self.log_cleaner_io_max_bytes_per_second > 0:
            raise ConfigError("log.cleaner.io.max.bytes.per.second must be above 0")
