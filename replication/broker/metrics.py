"""A broker's state as Prometheus metrics, under the names that jmx_exporter gives Kafka's MBeans
(R-157 … R-168, R-172, R-173).

``kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions`` is
``kafka_server_replicamanager_underreplicatedpartitions``; ``…PerSec`` is a counter ``…_total``,
and the times of requests are histograms; keys beyond type and name are labels.
Each sample has a label ``broker``: brokers may share a process.

State is read at each scrape, so nothing is counted twice and the data path has no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from checkpoints.printable import printable
from logstore.common.extras import Extra, load
from logstore.manager import LogManager
from replication.fetcher.fetcher_manager import FetcherManager
from replication.partition import Partition
from replication.replica_manager.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from replication.broker.broker import Broker
    from replication.controller.context import ControllerStats


class Sample(NamedTuple):
    """One value of one MBean. ``is_counter`` if it only grows."""

    name: str  # type and name of the MBean below its domain, as "server_ReplicaManager_LeaderCount"
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    is_counter: bool = False


class Histogram(NamedTuple):
    """The distribution of one value of one MBean.

    Attributes:
        buckets: bounds, ascending to infinity, and how many values are not above each.
        total: of all values.
    """

    name: str
    buckets: Sequence[tuple[float, int]]
    total: float
    labels: tuple[tuple[str, str], ...] = ()


MoreSamples: TypeAlias = Callable[["Broker"], Iterable[Sample | Histogram]]


def no_more(broker: Broker) -> Iterable[Sample | Histogram]:
    return ()


class BrokerCollector:
    """For ``CollectorRegistry.register``; made by ``collector``."""

    def __init__(self, brokers: Iterable[Broker], more: MoreSamples) -> None:
        self._brokers = tuple(brokers)
        self._more = more

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registry reads no values when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        families = MetricFamilies()
        for broker in self._brokers:
            own = (("broker", str(broker.broker_id)),)
            for sample in chain(samples_of(broker), self._more(broker)):
                name = f"kafka_{sample.name}".lower()
                families.add(name, f"Kafka's {sample.name}", sample, own)
        return families.found.values()


class MetricFamilies:
    """Samples, gathered by the names of their metrics."""

    def __init__(self) -> None:
        self._core = _library()
        self.found: dict[str, Metric] = {}

    def add(
        self,
        name: str,
        description: str,
        sample: Sample | Histogram,
        labels: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Add a sample to the metric ``name``, under further labels than its own."""
        given = {key: printable(text) for key, text in (*labels, *sample.labels)}
        family: Any = self.found.get(name)
        if family is None:
            family = self.found[name] = _family_of(sample, self._core)(name, description)
        if isinstance(sample, Histogram):
            for bound, count in sample.buckets:
                le = "+Inf" if bound == inf else repr(float(bound))
                family.add_sample(f"{name}_bucket", {**given, "le": le}, count)
            family.add_sample(f"{name}_count", given, sample.buckets[-1][1])
            family.add_sample(f"{name}_sum", given, sample.total)
        else:
            suffix = "_total" if sample.is_counter else ""
            family.add_sample(name + suffix, given, sample.value)


def _family_of(sample: Sample | Histogram, core: Any) -> Any:
    if isinstance(sample, Histogram):
        return core.HistogramMetricFamily
    return core.CounterMetricFamily if sample.is_counter else core.GaugeMetricFamily


def collector(*brokers: Broker, more: MoreSamples = no_more) -> BrokerCollector:
    """A collector for some brokers, as in ``REGISTRY.register(collector(broker))``.

    ``more`` gives the samples of what stands in front of a broker. Values are read on the
    thread of the scrape.

    Raises:
        ConfigError: the extra ``metrics`` is not installed.
    """
    _library()
    return BrokerCollector(brokers, more)


def _library() -> Any:
    return load("prometheus_client.core", Extra.METRICS, "replication.broker.metrics")


def samples_of(broker: Broker) -> Iterator[Sample]:
    """All present samples of a broker."""
    yield from _replica_manager(broker.replica_manager)
    for partition in list(broker.replica_manager.partitions.values()):
        yield from _partition(partition)
    yield from _waiting(broker.replica_manager)
    yield from _fetchers(broker.replica_manager.fetchers)
    yield from _log_directories(broker.log_manager)
    yield from _cleaner(broker.log_manager)
    yield from _controller(broker.controller.stats)


def _group(
    prefix: str, values: Mapping[str, float], *labels: tuple[str, str], is_counter: bool = False
) -> Iterator[Sample]:
    for name, value in values.items():
        yield Sample(f"{prefix}_{name}", value, labels, is_counter)


def _replica_manager(manager: ReplicaManager) -> Iterator[Sample]:
    """Leaders, partitions and ISRs of the broker (R-157), its traffic (R-166, R-167) and its fetch
    sessions (R-165).
    """
    partitions = list(manager.partitions.values())
    online = [p for p in partitions if not p.offline]
    stats, sessions = manager.stats, manager.fetches.sessions
    gauges = {
        "LeaderCount": sum(p.is_leader for p in online),
        "PartitionCount": len(partitions),
        "OfflineReplicaCount": len(partitions) - len(online),
        "UnderReplicatedPartitions": sum(p.under_replicated for p in online),
        "UnderMinIsrPartitionCount": sum(p.under_min_isr for p in online),
        "AtMinIsrPartitionCount": sum(p.at_min_isr for p in online),
        "ProducerIdCount": sum(
            len(p.log.producers.known.producers) for p in online if p.log is not None
        ),
    }
    counters = {
        "IsrExpands": stats.isr_expands,
        "IsrShrinks": stats.isr_shrinks,
        "FailedIsrUpdates": stats.failed_isr_updates,
    }
    traffic = {
        "BytesIn": stats.bytes_in,
        "BytesOut": stats.bytes_out,
        "MessagesIn": stats.messages_in,
        "BytesRejected": stats.bytes_rejected,
        "ReplicationBytesIn": manager.fetchers.replication_bytes_in,
        "ReplicationBytesOut": stats.replication_bytes_out,
    }
    yield from _group("server_ReplicaManager", gauges)
    yield from _group("server_ReplicaManager", counters, is_counter=True)
    yield from _group("server_BrokerTopicMetrics", traffic, is_counter=True)
    yield Sample("server_LeaderReplication_byte_rate", manager.leader_quota.byte_rate)
    yield Sample("server_FollowerReplication_byte_rate", manager.follower_quota.byte_rate)
    prefix = "server_FetchSessionCache"
    yield Sample(f"{prefix}_NumIncrementalFetchSessions", len(sessions))
    yield Sample(f"{prefix}_NumIncrementalFetchPartitionsCached", sessions.partitions)
    yield Sample(f"{prefix}_IncrementalFetchSessionEvictions", sessions.evictions, is_counter=True)


def _partition(partition: Partition) -> Iterator[Sample]:
    """ISR, segments and offsets of one partition (R-158, R-159)."""
    labels = (("topic", partition.tp.topic), ("partition", str(partition.tp.partition)))
    log, leads = partition.log, partition.is_leader
    values = {
        "UnderReplicated": partition.under_replicated,
        "InSyncReplicasCount": len(partition.isr.committed) if leads else 0,
        "UnderMinIsr": partition.under_min_isr,
        "AtMinIsr": partition.at_min_isr,
        "ReplicasCount": len(partition.replicas) if leads else 0,
    }
    if log is not None:
        values["LastStableOffsetLag"] = log.high_watermark - log.last_stable_offset if leads else 0
        sizes = {
            "NumLogSegments": len(log.segments),
            "LogStartOffset": log.log_start_offset,
            "LogEndOffset": log.log_end_offset,
            "Size": log.size,
        }
        yield from _group("log_Log", sizes, *labels)
    yield from _group("cluster_Partition", values, *labels)


def _waiting(manager: ReplicaManager) -> Iterator[Sample]:
    """Requests that wait, and those that ended by their deadline (R-163, R-164)."""
    waiting, stats = manager.waiting, manager.stats
    for name, purgatories in (
        ("Produce", (waiting.produce,)),
        ("Fetch", (waiting.follower_fetch, waiting.consumer_fetch)),
        ("DeleteRecords", (waiting.delete_records,)),
    ):
        sizes = {
            "PurgatorySize": sum(each.watched for each in purgatories),
            "NumDelayedOperations": sum(each.delayed for each in purgatories),
        }
        operation = ("delayedOperation", name)
        yield from _group("server_DelayedOperationPurgatory", sizes, operation)
    for kind, count, *labels in (
        ("DelayedProduceMetrics", stats.produce_expirations),
        ("DelayedFetchMetrics", stats.follower_fetch_expirations, ("fetcherType", "follower")),
        ("DelayedFetchMetrics", stats.consumer_fetch_expirations, ("fetcherType", "consumer")),
        ("DelayedDeleteRecordsMetrics", stats.delete_records_expirations),
    ):
        yield Sample(f"server_{kind}_Expires", count, tuple(labels), is_counter=True)


def _fetchers(fetchers: FetcherManager) -> Iterator[Sample]:
    """Lag and traffic of the fetchers (R-160 … R-162)."""
    values = {
        "MaxLag": fetchers.max_lag,
        "MinFetchRate": fetchers.min_fetch_rate,
        "FailedPartitionsCount": len(fetchers.failed_partitions),
        "DeadThreadCount": fetchers.dead_workers,
    }
    yield from _group("server_ReplicaFetcherManager", values, ("clientId", "Replica"))
    for fetcher in fetchers.fetchers:
        client, leader = ("clientId", fetcher.name), ("leader", str(fetcher.leader_id))
        counts = {"Requests": fetcher.requests, "Bytes": fetcher.bytes}
        yield from _group("server_FetcherStats", counts, client, leader, is_counter=True)
        for tp, lag in fetcher.lags().items():
            where = (client, ("topic", tp.topic), ("partition", str(tp.partition)))
            yield Sample("server_FetcherLagMetrics_ConsumerLag", lag, where)


def _log_directories(log_manager: LogManager) -> Iterator[Sample]:
    """Which log directories are offline (R-168)."""
    offline = log_manager.offline_directories
    yield Sample("log_LogManager_OfflineLogDirectoryCount", len(offline))
    for path in sorted({*log_manager.live_directories, *offline}):
        labels = (("logDirectory", path),)
        yield Sample("log_LogManager_LogDirectoryOffline", path in offline, labels)


def _cleaner(log_manager: LogManager) -> Iterator[Sample]:
    """Yield what compaction has to do, and cannot do."""
    metrics = log_manager.cleaner.metrics
    yield Sample("log_LogCleanerManager_max_dirty_percent", metrics.max_dirty_percent)
    delay_s = metrics.max_compaction_delay_ms / 1000
    yield Sample("log_LogCleaner_max_compaction_delay_secs", delay_s)
    uncleanable = "log_LogCleanerManager_uncleanable_"
    yield Sample(f"{uncleanable}partitions_count", metrics.uncleanable_partitions)
    for path, size in sorted(metrics.uncleanable_bytes.items()):
        yield Sample(f"{uncleanable}bytes", size, (("logDirectory", path),))
    yield Sample("log_LogCleaner_passes", metrics.passes, is_counter=True)


def _controller(stats: ControllerStats) -> Iterator[Sample]:
    """The controller's view of the cluster, and its elections (R-172, R-173)."""
    values = {
        "ActiveControllerCount": stats.active_controller_count,
        "OfflinePartitionsCount": stats.offline_partitions_count,
        "PreferredReplicaImbalanceCount": stats.preferred_replica_imbalance_count,
        "GlobalTopicCount": stats.global_topic_count,
        "GlobalPartitionCount": stats.global_partition_count,
        "ActiveBrokerCount": stats.active_broker_count,
    }
    yield from _group("controller_KafkaController", values)
    yield Sample(
        "controller_ControllerStats_UncleanLeaderElections",
        stats.unclean_leader_elections,
        is_counter=True,
    )
