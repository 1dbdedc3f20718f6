"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (W-26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from functools import lru_cache
from typing import Any

from logstore.common.config import LogConfig, Properties
from logstore.common.errors import ConfigError
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.topic_names import is_valid, missing_code
from replication.apis.common.waits import MetadataWaits, ask_all
from replication.broker.broker import Broker
from replication.common.addresses import address_of
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import InvalidRequestError
from replication.common.messages import (
    AlterableConfig,
    AlterConfigOp,
    IncrementalAlterConfigsRequest,
    Request,
    TopicResponse,
)
from replication.common.quota import ReplicationQuota
from replication.common.state import Endpoint
from replication.common.topic_configs import THROTTLED
from replication.protocol import messages as wire
from replication.wire import topics as codec

MAX_DESCRIBED = 10_000
"""How many resources one answer describes, each in some 8 KB."""

SHOWN_WITHIN_MS = 5000
"""How long an alteration waits to be shown. One that somebody undid at once never is, and most
clients give up after 30 s."""


class ResourceType(IntEnum):
    TOPIC = codec.TOPIC
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


FIRST_WITH_TYPES = 1  # of ListConfigResources

# A topic's key under its broker-wide name (Kafka's ``ServerTopicConfigSynonyms``). Those that are
# not here have the same name for both, or none for a broker.
BROKER_NAMES: Mapping[str, str] = {
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
    "preallocate": "log.preallocate",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "cleanup.policy": "log.cleanup.policy",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
}
WITHOUT_DEFAULT = ("segment.ms", "segment.jitter.ms", "flush.ms")
"""Keys whose broker-wide names have no default in Kafka."""
SEGMENT_BYTES_MIN = 1 << 20
"""The least that a client can ask for since Kafka 4. The API in Python may ask for less."""


Rates = Mapping[str, ReplicationQuota]
NO_RATES: Rates = {}
ConfigEntry = wire.DescribeConfigsResponse.DescribeConfigsResourceResult
"""One key as a client sees it. ``synonyms`` lists where a value may come from, the one in force
first."""
Synonym = wire.DescribeConfigsResponse.DescribeConfigsSynonym

NO_BROKER_ID = Synonym("broker.id", "-1", ConfigSource.DEFAULT)


def _entry(
    name: str, value: str, kind: ConfigType, synonyms: Sequence[Synonym], *, read_only: bool
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    return ConfigEntry(name, value, read_only, source, False, tuple(synonyms), kind)


def topic_configs(defaults: LogConfig, own: Mapping[str, str]) -> Sequence[ConfigEntry]:
    """Every key of a topic.

    Args:
        defaults: the broker's.
        own: what the topic has in place of them.
    """
    return _topic_configs(defaults, tuple(sorted(own.items())))


@lru_cache(64)  # most topics have no configuration of their own, or one of a few
def _topic_configs(
    defaults: LogConfig, changes: tuple[tuple[str, str], ...]
) -> tuple[ConfigEntry, ...]:
    own = dict(changes)
    present, builtin = defaults.with_properties(own).to_properties(), LogConfig().to_properties()
    of_broker = defaults.to_properties()
    entries = []
    for name, kind in _types(LogConfig):
        synonyms = []
        if name in own:
            synonyms.append(Synonym(name, present[name], ConfigSource.TOPIC))
        if name not in THROTTLED:
            broker_name = BROKER_NAMES.get(name, name)
            if of_broker[name] != builtin[name]:
                synonyms.append(Synonym(broker_name, of_broker[name], ConfigSource.STATIC_BROKER))
            synonyms += _default(broker_name, name, builtin[name])
        entries.append(_entry(name, present[name], kind, synonyms, read_only=False))
    return tuple(entries)


def broker_configs(configs: Iterable[Properties], rates: Rates = NO_RATES) -> list[ConfigEntry]:
    """Every key of a broker; topics' keys under their broker-wide names.

    Args:
        rates: the keys that may change while it runs.
    """
    entries = []
    for config in configs:
        present, builtin = config.to_properties(), type(config)().to_properties()
        for key, kind in _types(type(config)):
            if key in THROTTLED:
                continue
            name = BROKER_NAMES.get(key, key) if isinstance(config, LogConfig) else key
            synonyms = _default(name, key, builtin[key])
            if present[key] != builtin[key]:
                synonyms.insert(0, Synonym(name, present[key], ConfigSource.STATIC_BROKER))
            value, rate = present[key], rates.get(key)
            if rate is not None and rate.is_set:
                value = str(rate.rate)
                synonyms.insert(0, Synonym(name, value, ConfigSource.DYNAMIC_BROKER))
            entries.append(_entry(name, value, kind, synonyms, read_only=rate is None))
    return entries


def _default(broker_name: str, key: str, value: str) -> list[Synonym]:
    """The place where a broker has the default of ``key``, which topics call so."""
    if key in WITHOUT_DEFAULT:
        return []
    if key == "retention.ms":
        broker_name, value = "log.retention.hours", str(int(value) // 3_600_000)
    return [Synonym(broker_name, value, ConfigSource.DEFAULT)]


def identity_configs(broker_id: int, endpoints: Iterable[Endpoint]) -> list[ConfigEntry]:
    """List who a broker is, and where clients reach it: keys that no configuration class has."""
    addresses = ",".join(
        f"{each.listener}://{address_of(each.host, each.port)}" for each in endpoints
    )
    entries = []
    for name, value, kind, others in (
        ("advertised.listeners", addresses, ConfigType.LIST, ()),
        ("broker.id", str(broker_id), ConfigType.INT, (NO_BROKER_ID,)),
        ("node.id", str(broker_id), ConfigType.INT, ()),
    ):
        own = Synonym(name, value, ConfigSource.STATIC_BROKER)
        entries.append(_entry(name, value, kind, (own, *others), read_only=True))
    return entries


def _types(kind: type[Properties]) -> list[tuple[str, ConfigType]]:
    """Keys in the order of the class, with their types."""
    found = []
    for each in fields(kind):  # type: ignore[arg-type]
        default = each.default
        if each.metadata["key"] in THROTTLED:
            config_type = ConfigType.LIST
        elif isinstance(default, bool):
            config_type = ConfigType.BOOLEAN
        elif isinstance(default, int):
            small = each.metadata["high"] is not None
            config_type = ConfigType.INT if small else ConfigType.LONG
        elif isinstance(default, float):
            config_type = ConfigType.DOUBLE
        elif isinstance(default, tuple):
            config_type = ConfigType.LIST
        else:
            config_type = ConfigType.STRING
        found.append((each.metadata["key"], config_type))
    return found


class ConfigsApi(ApiArea):
    """Configurations: a topic's may change while it is in use. A broker's is fixed at its start,
    but for the rates of throttles, which are back with the next start.

    Args:
        configs: the broker's own, topics' defaults included.
    """

    def __init__(self, broker: Broker, configs: Sequence[Properties], waits: MetadataWaits) -> None:
        self._broker = broker
        self._waits = waits
        self._metadata = broker.metadata
        self._configs = configs
        self._rates: Rates = broker.replica_manager.quotas

    # -- DescribeConfigs -----------------------------------------------------------------------

    def describe_configs(
        self, received: ReceivedRequest, request: wire.DescribeConfigsRequest, reply: Reply
    ) -> None:
        """Every key with its value, or those asked for. A resource that is named twice is answered
        once, since an answer has some hundred times the bytes of a name (W-237)."""
        kind = wire.DescribeConfigsResponse
        unknown = {each.resource_type for each in request.resources}.difference(ResourceType)
        if unknown:  # refuses the whole request, as in Kafka
            raise InvalidRequestError(f"resource types {sorted(unknown)}")
        asked: dict[tuple[int, str], set[str]] = {}  # without any: all keys
        for resource in request.resources:
            place = resource.resource_type, resource.resource_name
            wanted = set(resource.configuration_keys or ())
            known = asked.setdefault(place, wanted)
            asked[place] = known | wanted if known and wanted else set()
        results, described = [], 0
        for (resource_type, name), keys in asked.items():
            entries: tuple[ConfigEntry, ...] = ()
            found = self._entries(resource_type, name)
            if isinstance(found, TopicResponse):
                code, message = found.error_code, found.error_message
            elif described == MAX_DESCRIBED:
                code = ErrorCode.POLICY_VIOLATION
                message = f"one request has at most {MAX_DESCRIBED} resources described"
            else:
                described += 1
                code, message = ErrorCode.NONE, ""
                entries = tuple(
                    each if request.include_synonyms else each._replace(synonyms=())
                    for each in found
                    if not keys or each.name in keys
                )
            results.append(
                kind.DescribeConfigsResult(code, message or None, resource_type, name, entries)
            )
        reply(kind(results=tuple(results)))

    def _entries(self, resource_type: int, name: str) -> Sequence[ConfigEntry] | TopicResponse:
        match resource_type:
            case ResourceType.TOPIC:
                own = self._metadata.topic_config(name)
                if own is None:
                    return TopicResponse(missing_code(name), f"there is no topic {name!r}")
                return topic_configs(self._broker.log_manager.config, own)
            case ResourceType.BROKER:
                if not name:  # keys that were altered for all brokers together: there are none
                    return []
                return self._not_this_broker(name) or [
                    *identity_configs(self._broker.broker_id, self._broker.endpoints),
                    *broker_configs(self._configs, self._rates),
                ]
            case _:
                return _unknown_type(resource_type)

    def _not_this_broker(self, name: str) -> TopicResponse | None:
        """A broker answers for itself alone."""
        if name == str(self._broker.broker_id):
            return None
        reason = f"broker {self._broker.broker_id} does not know the configuration of {name!r}"
        return TopicResponse(ErrorCode.INVALID_REQUEST, reason)

    # -- ListConfigResources -------------------------------------------------------------------

    def list_config_resources(
        self, received: ReceivedRequest, request: wire.ListConfigResourcesRequest, reply: Reply
    ) -> None:
        """List what has a configuration. Version 0 asks for metrics of clients, which are none."""
        kind = wire.ListConfigResourcesResponse
        wanted = dict.fromkeys(request.resource_types or ResourceType)
        if received.api_version < FIRST_WITH_TYPES:
            wanted = {ResourceType.CLIENT_METRICS: None}
        elif not wanted.keys() <= set(ResourceType):
            reply(kind(error_code=ErrorCode.UNSUPPORTED_VERSION))
            return
        brokers = [str(each) for each in self._metadata.live_brokers]
        names: Mapping[int, Iterable[str]] = {
            ResourceType.TOPIC: self._metadata.topics,
            ResourceType.BROKER: brokers,
            ResourceType.BROKER_LOGGER: brokers,
        }
        found = (kind.ConfigResource(name, each) for each in wanted for name in names.get(each, ()))
        reply(kind(config_resources=tuple(found)))

    # -- AlterConfigs and IncrementalAlterConfigs ----------------------------------------------

    def alter_configs(
        self, received: ReceivedRequest, request: wire.AlterConfigsRequest, reply: Reply
    ) -> None:
        """Replace the configuration of a topic, or the rates of this broker. A key that the request
        leaves out has its default again."""

        def operations(resource: Any) -> list[AlterableConfig]:
            named = {each.name for each in resource.configs}
            own: Iterable[str] = self._metadata.topic_config(resource.resource_name) or ()
            if resource.resource_type == ResourceType.BROKER:
                own = [key for key, quota in self._rates.items() if quota.is_set]
            changes = [AlterableConfig(each.name, each.value) for each in resource.configs]
            dropped = [name for name in own if name not in named]
            return changes + [AlterableConfig(name, None, AlterConfigOp.DELETE) for name in dropped]

        self._alter(request, operations, wire.AlterConfigsResponse, reply)

    def incremental_alter_configs(
        self, received: ReceivedRequest, request: wire.IncrementalAlterConfigsRequest, reply: Reply
    ) -> None:
        """Set or delete single keys, or add to lists and take from them."""

        self._alter(request, codec.changes_from, wire.IncrementalAlterConfigsResponse, reply)

    def _alter(
        self,
        request: Any,
        operations: Callable[[Any], Sequence[AlterableConfig] | None],
        kind: Any,
        reply: Reply,
    ) -> None:
        """Answered when this broker shows the changes, or after ``SHOWN_WITHIN_MS``.

        A client that describes the topic next finds what it altered, and AlterConfigs, which drops
        what it does not name, knows what there is to drop.
        """

        def finish(answers: Sequence[TopicResponse]) -> None:
            reply(codec.altered_to(request.resources, answers, kind))

        def asked(answers: Sequence[TopicResponse]) -> None:
            altered = [
                at
                for at, each in enumerate(answers)
                if each.error_code is ErrorCode.NONE
                and resources[at][0].resource_type == ResourceType.TOPIC
            ]
            if request.validate_only or not altered:
                finish(answers)
                return
            self._waits.until(
                lambda: all(map(is_shown, altered)), SHOWN_WITHIN_MS, lambda _: finish(answers)
            )

        def is_shown(at: int) -> bool:
            """Whether this broker shows what was changed, or what somebody changed since."""
            resource, changes = resources[at]
            now = self._metadata.topic_config(resource.resource_name)
            return _shows(before[at], now, changes or ())

        resources = [(each, operations(each)) for each in request.resources]
        before = [self._metadata.topic_config(each.resource_name) or {} for each, _ in resources]
        counts = Counter((each.resource_type, each.resource_name) for each, _ in resources)
        questions: list[Request | TopicResponse] = []
        for resource, changes in resources:
            key = resource.resource_type, resource.resource_name
            refusal = self._refusal(*key, changes)
            if counts[key] > 1:
                refusal = TopicResponse(ErrorCode.INVALID_REQUEST, "a resource twice")
            elif refusal is None and key[0] == ResourceType.BROKER:
                refusal = self._alter_broker(key[1], changes or (), request.validate_only)
            question = IncrementalAlterConfigsRequest(
                key[1], tuple(changes or ()), request.validate_only
            )
            questions.append(refusal or question)
        ask_all(self._broker, questions, asked)

    def _refusal(
        self, resource_type: int, name: str, changes: Sequence[AlterableConfig] | None
    ) -> TopicResponse | None:
        match resource_type:
            case ResourceType.TOPIC:
                if changes is None or not name:
                    reason = "an unknown operation" if name else "a topic without a name"
                    return TopicResponse(ErrorCode.INVALID_REQUEST, reason)
                given = [each for each in changes if each.operation is not AlterConfigOp.DELETE]
                if any(each.value is None for each in given):
                    return TopicResponse(ErrorCode.INVALID_REQUEST, "a key without a value")
                if len({each.name for each in changes}) < len(changes):
                    return TopicResponse(ErrorCode.INVALID_REQUEST, "a configuration key twice")
                if is_valid(name):
                    return too_small_segment((each.name, each.value) for each in given)
                return None
            case ResourceType.BROKER:
                if changes is None:
                    return TopicResponse(ErrorCode.INVALID_REQUEST, "an unknown operation")
                return self._not_this_broker(name)
            case _:
                return _unknown_type(resource_type)

    def _alter_broker(
        self, name: str, changes: Iterable[AlterableConfig], validate_only: bool
    ) -> TopicResponse:
        """Set rates of throttles, all of them or none."""
        rates: dict[ReplicationQuota, int | None] = {}
        for key, value, operation in changes:
            quota = self._rates.get(key)
            if quota is None or operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
                return TopicResponse(
                    ErrorCode.INVALID_REQUEST,
                    f"{key[:80]}: the configuration of a broker is read at its start, but for the "
                    "rates of throttles",
                )
            if operation is AlterConfigOp.DELETE:
                rates[quota] = None
                continue
            try:
                found = ReplicationConfig.from_properties({key: value or ""})
            except ConfigError as error:
                return TopicResponse(ErrorCode.INVALID_CONFIG, str(error))
            rates[quota] = int(found.to_properties()[key])
        if not validate_only:
            for quota, rate in rates.items():
                quota.set_rate(rate)
        return TopicResponse(ErrorCode.NONE)


def too_small_segment(configs: Iterable[tuple[str, str | None]]) -> TopicResponse | None:
    """The refusal of segments that a client may not have; None if they are large enough."""
    for name, value in configs:
        if name != "segment.bytes" or value is None:
            continue
        try:
            is_small = int(value) < SEGMENT_BYTES_MIN
        except ValueError:  # which is said where all values are checked
            continue
        if is_small:
            reason = f"segment.bytes = {value} is below its minimum {SEGMENT_BYTES_MIN}"
            return TopicResponse(ErrorCode.INVALID_CONFIG, reason)
    return None


def _shows(
    before: Mapping[str, str], now: Mapping[str, str] | None, changes: Iterable[AlterableConfig]
) -> bool:
    """Whether each key of a topic is as a change made it, or is not as it was before.

    ``now`` is None for a topic that is gone, which nobody has to wait for.
    """
    if now is None:
        return True
    for name, value, operation in changes:
        known = now.get(name)
        parts = set() if known is None else {each.strip() for each in known.split(",")}
        asked = {each.strip() for each in (value or "").split(",")} - {""}
        match operation:
            case AlterConfigOp.SET:
                is_there = known == value
            case AlterConfigOp.DELETE:
                is_there = known is None
            case AlterConfigOp.APPEND:
                is_there = asked <= parts
            case AlterConfigOp.SUBTRACT:
                is_there = known is not None and not asked & parts
        if not is_there and known == before.get(name):
            return False
    return True


def _unknown_type(resource_type: int) -> TopicResponse:
    return TopicResponse(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} is not served")
