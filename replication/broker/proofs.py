"""Which logs of a broker are as its last stop left them (KIP-966), and whether they are this
cluster's.

Only a replica whose log is proven counts as in sync after a restart. The marker of a clean stop and
the registration report to the controller, which compares the epochs in them.
"""

from __future__ import annotations

from collections.abc import Callable

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.manager import LogManager
from replication.broker.identity import (
    BrokerHome,
    TreeIdentity,
    check_cluster_id,
    read_topics,
    refuse_topics_without_ids,
    settle_identity,
)
from replication.common.state import (
    MAX_EPOCH_OF_A_LOG,
    UNKNOWN_EPOCH,
    BrokerRegistration,
    Endpoint,
)
from replication.coordination import Coordinator, nodes

logger = get_logger(__name__)

EPOCHS_NAMED = 64  # the most epochs of earlier sessions in a registration
UNPROVEN_NAMED = 3000  # with the longest names they still fit into a node


class LogProofs:
    """The proofs of one broker.

    Args:
        told_epoch: returns the latest of its epochs that a controller surely knows.
    """

    def __init__(
        self, broker_id: int, directory: str, log_manager: LogManager, told_epoch: Callable[[], int]
    ) -> None:
        self._broker_id = broker_id
        self._directory = directory
        self._log_manager = log_manager
        self._reported_epoch = told_epoch
        stop = log_manager.last_stop
        self._epochs = stop.broker_epochs  # nothing was lost since these, ascending
        self._unproven: frozenset[TopicPartition] | None = stop.unproven  # None: all
        self._coordinator_epoch = UNKNOWN_EPOCH
        self._first_epoch = self._doubtful_below = UNKNOWN_EPOCH
        self._knows_tree = False

    # -- before a registration -----------------------------------------------------------------

    def check_tree(self, session: Coordinator) -> TreeIdentity:
        """
        Raises:
            InconsistentClusterIdError: the tree is that of another cluster.
            TopicsWithoutIdsError: it is that of an old Kafka.
        """
        manager = self._log_manager
        logs = {tp: log.topic_id for tp, log in manager.logs.items()}
        home = BrokerHome(self._directory, manager.cluster_id, logs)
        if self._knows_tree:
            return check_cluster_id(session, home)
        refuse_topics_without_ids(session)
        identity = settle_identity(session, [home], manager.cluster_id)
        self._find_missing_logs(session)
        self._knows_tree = True
        return identity

    def _find_missing_logs(self, session: Coordinator) -> None:
        """Look for replicas of this broker that have no log here, if they may have had one.

        A broker that no controller knows is new, and had none.
        """
        manager = self._log_manager
        unproven = set(manager.last_stop.unproven)
        known = session.get(nodes.broker_epoch_path(self._broker_id)) is not None
        if manager.last_stop.may_miss_logs and known:
            deleting = {*session.children(nodes.DELETE_TOPICS)}  # their logs may have gone first
            unproven.update(
                TopicPartition(name, number)
                for name, topic in read_topics(session).items()
                for number, replicas in topic.partitions.items()
                if self._broker_id in replicas and name not in deleting
            )
            unproven -= manager.logs.keys() - manager.last_stop.unproven
        self._unproven = frozenset(unproven)
        if unproven or not manager.last_stop.proves_logs:
            self._coordinator_epoch = self._largest_coordinator_epoch()
        if unproven:
            logger.error(
                "broker %s: the logs of %s replicas are missing, or are not as its last stop left "
                "them (%s-%s, …): they do not count as in sync",
                self._broker_id,
                len(unproven),
                *min(unproven),
            )

    def _largest_coordinator_epoch(self) -> int:
        """Return the largest of the logs. They may come from another cluster, whose coordinators
        were elected more often than ours: their markers would be refused (R-182)."""
        largest = UNKNOWN_EPOCH
        for log in [each for each in self._log_manager.logs.values() if not each.failed]:
            epoch = log.producers.largest_coordinator_epoch()
            if epoch > MAX_EPOCH_OF_A_LOG:
                logger.error(
                    "%s: a producer has the coordinator epoch %s, above %s: no cluster gets there, "
                    "and its transactions cannot be ended",
                    log.name,
                    epoch,
                    MAX_EPOCH_OF_A_LOG,
                )
            else:
                largest = max(largest, epoch)
        return largest

    def registration(
        self, endpoints: tuple[Endpoint, ...], rack: str | None, wall_ms: int
    ) -> BrokerRegistration:
        """The registration, with the epochs since which nothing was lost: that of the last clean
        stop, those before it, and those of this process.
        """
        host, port = (endpoints[0].host, endpoints[0].port) if endpoints else ("localhost", -1)
        previous = self._log_manager.previous_broker_epoch
        unproven = frozenset() if self._is_known else self._unproven
        return BrokerRegistration(
            self._broker_id,
            host,
            port,
            rack,
            previous,
            wall_ms,
            tuple(epoch for epoch in self._epochs if epoch != previous),
            endpoints,
            unproven if unproven is None or len(unproven) <= UNPROVEN_NAMED else None,
            self._log_manager.last_stop.proves_logs,
            self._coordinator_epoch,
        )

    @property
    def _is_known(self) -> bool:
        """Whether a controller has processed a registration of this process.

        Then it knows ``_unproven``. No other one talks to a broker.
        """
        return UNKNOWN_EPOCH != self._first_epoch <= self._reported_epoch()

    # -- afterwards ----------------------------------------------------------------------------

    def note_epoch(self, epoch: int, *, is_doubtful: bool) -> None:
        """Note the epoch of a registration. ``is_doubtful``: an earlier one may be unknown."""
        if self._first_epoch == UNKNOWN_EPOCH:
            self._first_epoch = epoch
        if is_doubtful:
            self._doubtful_below = epoch
        self._epochs = (*self._epochs, epoch)[-EPOCHS_NAMED:]

    def note_late_epoch(self, epoch: int) -> None:
        """Note the epoch of a registration that came too late for the marker of the stop."""
        self._doubtful_below = epoch

    def close_logs(self, *, has_unknown_epoch: bool) -> None:
        """Close the logs.

        The marker has the last epoch, which may be that of an earlier process if this one never
        joined, and earlier ones that a controller may know instead.
        """
        *earlier, last = self._epochs or (UNKNOWN_EPOCH,)
        reported = self._reported_epoch()
        doubts = None if has_unknown_epoch else self.doubts()
        self._log_manager.close(last, [epoch for epoch in earlier if epoch >= reported], doubts)

    def doubts(self) -> frozenset[TopicPartition] | None:
        """The replicas whose logs a stop now does not prove; None if it proves none.

        It proves none if a controller may know an epoch that the marker does not name: that would
        look like another time. And none if the last stop left something to be looked for, of which
        no controller knows yet.
        """
        if self._reported_epoch() < self._doubtful_below:
            return None
        if self._is_known:
            return frozenset()
        stop = self._log_manager.last_stop
        return self._unproven if stop.broker_epochs and not stop.may_miss_logs else None
