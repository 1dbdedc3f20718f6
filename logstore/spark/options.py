"""Options of reading, named as in Spark's own Kafka source where it has them."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

from checkpoints.loggers import get_logger
from logstore.common.bounds import BATCH_MAX, SPARK_BATCH_MAX
from logstore.common.errors import ConfigError, UnknownTopicOrPartitionError
from logstore.common.suggestions import unknown
from logstore.directory.splits import ReadSettings
from logstore.spark.columns import choose
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path
from logstore.storage.uri import shown

EARLIEST = -2
LATEST = -1
"""Special offsets, in JSON as in Kafka's ListOffsets."""

_OF_KAFKA = frozenset(
    name.lower()
    for name in (
        *("assign", "subscribe", "subscribePattern", "includeHeaders", "failOnDataLoss"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        *("startingOffsetsByTimestampStrategy", "minPartitions", "maxRecordsPerPartition"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("kafkaConsumer.pollTimeoutMs", "pollTimeoutMs", "groupIdPrefix"),
        *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    )
)
"""Options of Spark's Kafka source, beside ``kafka.…``. Like it, a batch, a stream and the writer
ignore those that only the others know."""

logger = get_logger(__name__)

TopicAndPartition: TypeAlias = tuple[str, int]
_T = TypeVar("_T")

INTERNAL_TOPICS = frozenset(
    ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
)
"""Read only when named, as a consumer with a pattern leaves them out (exclude.internal.topics)."""

_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]+)\s*(ms|s|m|h)")
_NANOSECONDS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which partitions are read. At most one field is set; without any all topics are wanted.

    ``assigned`` lists partitions, ``subscribed`` topics; ``pattern`` matches a whole name of a
    topic.
    """

    assigned: frozenset[TopicAndPartition] = frozenset()
    subscribed: frozenset[str] = frozenset()
    pattern: str = ""

    def takes(self, topic: str, partition: int, own_path: bool = False) -> bool:
        """``own_path``: the user gave the partition's directory itself."""
        if self.assigned:
            return (topic, partition) in self.assigned
        if self.subscribed:
            return topic in self.subscribed
        if topic in INTERNAL_TOPICS and not own_path:
            return False
        return not self.pattern or re.fullmatch(self.pattern, topic) is not None

    def missing(self, found: Iterable[TopicAndPartition]) -> list[str]:
        """The selected names that are not among ``found``."""
        there = set(found)
        topics = {topic for topic, _ in there}
        partitions = [f"{t}-{p}" for t, p in sorted(self.assigned) if (t, p) not in there]
        return partitions + [topic for topic in sorted(self.subscribed) if topic not in topics]


@dataclass(frozen=True, slots=True)
class OffsetRangeLimit:
    """The offsets where reading starts or ends: one of each partition, or by a time.

    ``offsets`` and ``timestamps`` (ms) are given by partition; ``timestamp`` is for all of them.
    At most one of them is set. Without any, ``offset``, which is ``EARLIEST`` or ``LATEST``, is for
    all.
    """

    offset: int = EARLIEST
    offsets: Mapping[TopicAndPartition, int] = field(default_factory=dict)
    timestamps: Mapping[TopicAndPartition, int] = field(default_factory=dict)
    timestamp: int | None = None

    @property
    def partitions(self) -> Collection[TopicAndPartition]:
        """The partitions that are named."""
        return {**self.offsets, **self.timestamps}.keys()

    def time_of(self, topic: str, partition: int) -> int | None:
        """The time asked for, in ms; ``None`` when the bound is an offset."""
        if self.timestamp is not None:
            return self.timestamp
        if not self.timestamps:
            return None
        return self._of(self.timestamps, topic, partition, "a timestamp")

    def offset_of(self, topic: str, partition: int) -> int:
        if not self.offsets:
            return self.offset
        return self._of(self.offsets, topic, partition, "an offset")

    @staticmethod
    def _of(given: Mapping[TopicAndPartition, int], topic: str, partition: int, what: str) -> int:
        if (topic, partition) not in given:
            raise ConfigError(
                f"the options name {what} for some partitions, but none for {topic}-{partition}"
            )
        return given[topic, partition]


class Options:
    """Options as Spark hands them over: names in any case, values as text.

    A getter removes the option that it reads. ``refuse_unknown`` reports what is left.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        self._known: dict[str, str] = {}

    def text(self, name: str, default: str = "") -> str:
        self._known[name.lower()] = name
        return self._given.get(name.lower(), default)

    def has(self, name: str) -> bool:
        self._known[name.lower()] = name
        return name.lower() in self._given

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of ``allowed``, in upper or lower case. The first is the default."""
        value = self.text(name, allowed[0])
        for word in allowed:
            if word.lower() == value.lower():
                return word
        raise ConfigError(f"option {name}: {value!r} is none of {', '.join(allowed)}")

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def integer(self, name: str, default: _T, least: int = 0) -> int | _T:
        text = self.text(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(f"option {name}: {text!r} is no whole number") from None
        if value < least:
            raise ConfigError(f"option {name}: {value} is below {least}")
        return value

    def size(self, name: str, default: str, least: int, most: int) -> int:
        """Bytes, with a suffix K, M, G or T of powers of 1,024."""
        text = self.text(name, default).strip()
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ConfigError(f"option {name}: {text!r} is no size in bytes, such as {default}")
        value = int(match[1]) * _UNITS[match[2].lower()]
        if not least <= value <= most:
            raise ConfigError(f"option {name}: {value} bytes are outside {least} to {most}")
        return value

    def duration_ns(self, name: str, default: str) -> int:
        text = self.text(name, default).strip().lower()
        match = _DURATION.fullmatch(text)
        if match is None:
            raise ConfigError(f"option {name}: {text!r} is no duration, such as 500ms, 30s or 15m")
        return int(match[1]) * _NANOSECONDS[match[2]]

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word for part in self.text(name).split(",") if (word := part.strip()))

    def json(self, name: str, parse: Callable[[Any], _T], default: _T) -> _T:
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(json.loads(text))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"option {name}: {text!r}: {error}") from None

    def only_one_of(self, *names: str) -> None:
        given = [name for name in names if name.lower() in self._given]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} exclude each other")

    def refuse_unknown(self, *, note: bool = True) -> None:
        """Refuse options that no getter has read. Ignore those of Spark's Kafka source.

        Args:
            note: name those that are ignored in the log.
        Raises:
            ConfigError: lists the options that exist.
        """
        left = sorted(set(self._given) - set(self._known))
        ignored = [name for name in left if name.startswith("kafka.") or name in _OF_KAFKA]
        for name in left:
            if name not in ignored:
                raise unknown("option", name, self._known.values())
        if ignored and note:
            logger.warning("options for Kafka that are ignored here: %s", ", ".join(ignored))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadSettings):
    """The options of what to read and how, for batch and streaming alike. Sizes in bytes."""

    paths: tuple[str, ...]
    selection: TopicSelection
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    start_latest_without_match: bool
    up_to_high_watermark: bool
    split_bytes: int
    min_partitions: int
    max_records_per_partition: int
    columns: tuple[str, ...]
    broker: str
    replicas: bool
    tier: str
    prefer_tier: bool
    ascending_timestamps: bool
    push_filters: bool

    @classmethod
    def parse(cls, options: Options, *, streaming: bool = False) -> SourceOptions:
        """
        Raises:
            ConfigError: an invalid value, or options that exclude each other.
                `Options.refuse_unknown` checks unknown names, because a caller may have options of
                its own.
        """
        granularity, columns = chosen_columns(options)
        if granularity == "batch" and options.has("maxRecordsPerPartition"):
            raise ConfigError("maxRecordsPerPartition is for rows of records")
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        starting = _limit(options, "starting", LATEST if streaming else EARLIEST)
        if not streaming and starting.offset == LATEST:
            raise ConfigError("startingOffsets: latest is for streaming; a batch would be empty")
        if streaming:
            _refuse_ends(options)
        ending = OffsetRangeLimit(LATEST) if streaming else _limit(options, "ending", LATEST)
        replicas = options.choice("replicas", ("one", "all")) == "all"
        tier = _absolute(options.text("tier")) if options.text("tier") else ""
        prefer_tier = options.flag("preferTier", False)
        if prefer_tier and not tier:
            raise ConfigError("preferTier is for reading with a tier, see the option tier")
        if tier and replicas:
            raise ConfigError("replicas=all reads every copy as it is: it has no tier")
        return cls(
            paths=_paths(options),
            selection=_selection(options),
            starting=starting,
            ending=ending,
            start_latest_without_match=strategy == "latest",
            read_committed=_isolation(options) == "read_committed",
            up_to_high_watermark=options.choice("upTo", ("logEnd", "highWatermark"))
            == "highWatermark",
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            drop_malformed=options.choice("mode", ("FAILFAST", "DROPMALFORMED")) == "DROPMALFORMED",
            include_control=options.flag("includeControl", False),
            check_crcs=options.flag("checkCrcs", True),
            split_bytes=options.size("splitBytes", "128m", 1 << 10, 1 << 50),
            min_partitions=options.integer("minPartitions", 0, 1),
            max_records_per_partition=options.integer("maxRecordsPerPartition", 0, 1),
            max_batch_bytes=options.size("maxBatchBytes", str(SPARK_BATCH_MAX), 1 << 10, BATCH_MAX),
            granularity=granularity,
            columns=columns,
            broker=_broker(options),
            replicas=replicas,
            tier=tier,
            prefer_tier=prefer_tier,
            ascending_timestamps=options.flag("ascendingTimestamps", False),
            push_filters=options.flag("pushFilters", False),
        )

    def check_named(self, found: Collection[TopicAndPartition]) -> None:
        """
        Raises:
            UnknownTopicOrPartitionError: an option names a partition that is not among ``found``.
        """
        named = {*self.starting.partitions, *self.ending.partitions}
        missing = [*self.selection.missing(found), *(f"{t}-{p}" for t, p in named - set(found))]
        if missing:
            there = ", ".join(sorted({topic for topic, _ in found})) or "none"
            below = ", ".join(map(shown, (*self.paths, *filter(None, [self.tier]))))
            raise UnknownTopicOrPartitionError(
                f"{', '.join(sorted(set(missing)))} not found below {below}; "
                f"of the topics there, those selected are: {there}"
            )


def chosen_columns(options: Options) -> tuple[str, tuple[str, ...]]:
    """The granularity of a row, and the names of its columns."""
    granularity = options.choice("granularity", ("record", "batch"))
    include_headers = options.flag("includeHeaders", False)
    return granularity, choose(granularity, options.words("columns"), include_headers)


def _paths(options: Options) -> tuple[str, ...]:
    """``load(path)`` and ``load([path, …])`` arrive as two options, the second as JSON."""
    none: tuple[str, ...] = ()
    many = options.json("paths", _strings, none)
    one = options.text("path")
    paths = (*many, one) if one else many
    if not paths:
        raise ConfigError('no path: load("/var/lib/kafka/data"), or the option path')
    return tuple(map(_absolute, paths))


def _absolute(path: str) -> str:
    """For tasks, whose processes have working directories of their own."""
    if path.startswith("file:/") and not path.startswith("file://"):  # as Hadoop writes one
        return unquote(path.removeprefix("file:"))
    return absolute_path(LocalStorage(), path)


def _broker(options: Options) -> str:
    """The id of a broker, or the path of its log directory."""
    broker = options.text("broker")
    return _absolute(broker) if broker and not broker.isdigit() else broker


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("not a list of paths")
    return tuple(value)


def _isolation(options: Options) -> str:
    """``isolation``, or the consumer's ``kafka.isolation.level``."""
    levels = ("read_uncommitted", "read_committed")
    options.only_one_of("isolation", "kafka.isolation.level")
    of_kafka = options.choice("kafka.isolation.level", levels)
    return options.choice("isolation", levels) if options.has("isolation") else of_kafka


def _selection(options: Options) -> TopicSelection:
    options.only_one_of("assign", "subscribe", "subscribePattern", "topics")
    for name in ("assign", "subscribe", "subscribePattern", "topics"):
        if options.has(name) and not options.words(name):
            raise ConfigError(
                f"option {name}: {options.text(name)!r} names nothing; without it all are read"
            )
    pattern = options.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"option subscribePattern: {pattern!r}: {error}") from None
    shell_patterns = options.words("topics")
    if shell_patterns:
        pattern = "|".join(fnmatch.translate(word) for word in shell_patterns)
    return TopicSelection(
        options.json("assign", _assigned, frozenset()),
        frozenset(options.words("subscribe")),
        pattern,
    )


def _assigned(value: Any) -> frozenset[TopicAndPartition]:
    assigned = frozenset(
        (topic, _whole(partition)) for topic, found in value.items() for partition in found
    )
    if not assigned:
        raise ValueError("it names no partition")
    return assigned


def _limit(options: Options, name: str, default: int) -> OffsetRangeLimit:
    """The first that is given of time, times by partition, and offsets, as in Spark's source."""
    timestamp = options.integer(f"{name}Timestamp", None)
    none: dict[TopicAndPartition, int] = {}
    timestamps = options.json(f"{name}OffsetsByTimestamp", _by_partition, none)
    text = options.text(f"{name}Offsets")
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        offset, offsets = words[text.lower()], none
    else:
        offset, offsets = default, options.json(f"{name}Offsets", _by_partition, none)
    if name == "ending" and (offset == EARLIEST or EARLIEST in offsets.values()):
        raise ConfigError("endingOffsets: nothing lies before the earliest offset")
    if name == "starting" and default == EARLIEST and LATEST in offsets.values():
        raise ConfigError("startingOffsets: −1, latest, is for streaming")
    if timestamp is not None:
        return OffsetRangeLimit(timestamp=timestamp)
    if timestamps:
        return OffsetRangeLimit(timestamps=timestamps)
    return OffsetRangeLimit(offset, offsets)


def _refuse_ends(options: Options) -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if options.has(name):
            raise ConfigError(f"{name} is for batch queries: a stream has no end")


def _by_partition(value: Any) -> dict[TopicAndPartition, int]:
    """The values of JSON such as ``{"topic": {"0": 23, "1": -2}}``."""
    given = {
        (topic, _whole(int(partition))): _whole(number, EARLIEST)
        for topic, numbers in value.items()
        for partition, number in numbers.items()
    }
    if not given:
        raise ValueError("it names no partition")
    if len(given) < sum(len(numbers) for numbers in value.values()):
        raise ValueError("it names a partition twice")
    return given


def _whole(value: Any, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is no whole number from {least} on")
    return value
