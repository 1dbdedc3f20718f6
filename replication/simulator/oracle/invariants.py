"""The invariants after every event (I-2 … I-5, I-7 … I-13). The ids are those of
docs/rules/invariants.md.

The oracle checks only the broker of the event, and only what changed. It keeps one *committed* log
for each partition, with everything that any leader's high watermark has passed. A committed offset
never changes, and every member of the controller's ISR or ELR has it.
"""

from __future__ import annotations

from collections import Counter

from checkpoints.types import TopicPartition
from logstore.log import PartitionLog
from replication.common.messages import Request, Response
from replication.common.state import UNKNOWN_EPOCH
from replication.partition import Partition
from replication.simulator.oracle.answers import Answers
from replication.simulator.oracle.calm import Calm
from replication.simulator.oracle.durability import Durability
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.oracle_log import OracleEntry, OracleLog, View
from replication.simulator.oracle.recoveries import Recoveries
from replication.simulator.oracle.registrations import RegistrationChecks
from replication.simulator.oracle.unclean import UncleanElections
from replication.simulator.oracle.wakeups import Wakeups
from replication.simulator.world.cluster import Machine, SimCluster


class Oracle:
    """Collects ``violations``; the first one counts.

    Args:
        knows_faults: the cluster knows everything that delays messages or brokers, so it is known
            when nothing does (I-28).
    """

    def __init__(
        self, cluster: SimCluster, partitions: list[TopicPartition], *, knows_faults: bool = True
    ) -> None:
        self.violations: list[str] = []
        self.counters: Counter[str] = Counter()
        self.committed: dict[TopicPartition, dict[int, OracleEntry]] = {tp: {} for tp in partitions}
        self.registered = RegistrationChecks(cluster, partitions, self)
        self.registrations = self.registered.known
        self._cluster = cluster
        self._views: dict[int, dict[TopicPartition, View]] = {b: {} for b in cluster.machines}
        self.excuses = Excuses(self.counters)
        self._wakeups: dict[int, Wakeups] = {}
        self._knows_faults = knows_faults
        self._calm = Calm(cluster, self.registrations, self.violated)
        self._answers = Answers(cluster, self.violated)
        cluster.network.on_answer = self._answered
        self._durability = Durability(cluster, self.excuses, self.violated, self._shadow_of)
        self.asked = self._durability.asked  # called with every request that is sent
        self.unclean = UncleanElections(
            cluster, self.committed, self.excuses, self.counters, self.violated, self._shadow_of
        )
        self._recoveries = Recoveries(self.counters, self.excuses)
        self._ledger: dict[
            tuple[TopicPartition, int, int], tuple[OracleEntry, OracleEntry | None]
        ] = {}
        self._accepted: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        # Below the log start of some leader. These records need not be kept or equal any more, even
        # if a restarting replica does not know that yet.
        self._deleted = dict.fromkeys(partitions, 0)
        self._highest = dict.fromkeys(partitions, 0)  # the largest high watermark so far
        self._min_isr = cluster.plan.min_isr

    # -- looking -------------------------------------------------------------------------------

    def after_event(self, node: int | None) -> None:
        """Check after an event of ``node``; None for any."""
        if node is None:
            for machine in self._cluster.machines.values():
                self._look_at(machine)
        else:
            machine_ = self._cluster.machines.get(node)
            if machine_ is not None:
                self._look_at(machine_)
        if self._knows_faults and self._cluster.scheduler.now_us >= self._calm.next_us:
            self._calm.look()
        tree = self._cluster.coordinator.tree
        if tree is not None and tree.zxid != self.registered.zxid:
            self.registered.check(tree)

    def _look_at(self, machine: Machine) -> None:
        broker = machine.broker
        if broker is None:
            return
        views, partitions = self._views[machine.broker_id], broker.replica_manager.partitions
        for tp in self.committed:
            partition = partitions.get(tp)
            log = None if partition is None else partition.log
            if partition is None or log is None:
                continue
            view = views.get(tp)
            if view is None or view.shadow.log is not log:
                view = self._open(machine, tp, log)
                view.began_in = partition.leader_epoch
            now = log.snapshot
            state = (
                now.log_end_offset,
                now.high_watermark,
                now.version,
                now.log_start_offset,
                partition.role,
            )
            if state != view.state:
                view.state = state
                self._changed(machine, tp, partition, log, view)
        wakeups = self._wakeups[machine.broker_id]
        if wakeups.waiting and not machine.disk.stopped:
            forgotten = wakeups.forgotten()
            if forgotten is not None:
                self.violated("I-26", forgotten[0], f"b{machine.broker_id}: {forgotten[1]}")

    def started(self, machine: Machine) -> None:
        """Compare the logs that a broker has opened with what they held before (I-13)."""
        assert machine.broker is not None
        self._wakeups[machine.broker_id] = Wakeups(machine)
        for tp, error in machine.broker.log_manager.unavailable_logs.items():
            if self._cluster.atlas.is_damaged(machine.broker_id):
                self.excuses.use(Excuse.DAMAGE_REPORTED)
            else:
                self.violated("I-17", tp, f"the disk of b{machine.broker_id} is whole, and {error}")
        for tp, log in machine.broker.log_manager.logs.items():
            if tp in self.committed:
                self._open(machine, tp, log)

    def ended(self, machine: Machine) -> None:
        """Note the logs of a process. Call it before the process dies."""
        broker_id = machine.broker_id
        for tp, view in self._views[broker_id].items():
            log = view.shadow.log
            if view.incarnation == machine.starts and _is_kept(machine, tp, log):
                if view.leads:  # the event in which it dies may have informed others
                    self._highest[tp] = max(self._highest[tp], log.high_watermark)
                self._recoveries.ended(machine, tp, view.shadow, view.undone)

    def _answered(self, broker_id: int, request: Request, response: Response | None) -> None:
        self._answers.given(broker_id, request, response)
        self._durability.answered(broker_id, request, response)

    def _shadow_of(self, broker_id: int, tp: TopicPartition) -> OracleLog | None:
        view, machine = self.view(broker_id, tp), self._cluster.machines[broker_id]
        return view.shadow if view is not None and view.incarnation == machine.starts else None

    def violated(self, number: str, tp: TopicPartition, text: str) -> None:
        if len(self.violations) < 5:
            self.violations.append(f"{number} {tp}: {text}")

    # -- one replica ---------------------------------------------------------------------------

    def _open(self, machine: Machine, tp: TopicPartition, log: PartitionLog) -> View:
        shadow = OracleLog(tp, log, machine.disk)
        view = View(shadow, machine.starts)
        self._views[machine.broker_id][tp] = view
        previous = None
        for entry in dict.fromkeys(shadow.entries[o] for o in sorted(shadow.entries)):
            self._note_entry(machine, tp, entry, previous)
            previous = entry
        self._cluster.scheduler.note(
            f"b{machine.broker_id} {tp} opens at [{shadow.start}, {shadow.end})"
        )
        damaged = self._cluster.atlas.is_damaged(machine.broker_id)
        found, view.undone = self._recoveries.opened(machine, tp, shadow, damaged=damaged)
        if found:
            self.violated("I-13", tp, found)
        self._durability.opened(machine, tp, shadow)
        return view

    def _note_entry(
        self, machine: Machine, tp: TopicPartition, entry: OracleEntry, previous: OracleEntry | None
    ) -> None:
        """Offset and epoch determine the bytes, and everything before them (I-4).

        The content of a damaged disk does not count: a misdirected batch is whole wherever it
        landed.
        """
        if self._cluster.atlas.is_damaged(machine.broker_id):
            return
        known = self._ledger.get((tp, entry.base, entry.epoch))
        if known is None:
            self._ledger[tp, entry.base, entry.epoch] = (entry, previous)
            return
        if known[0] != entry:
            self.violated(
                "I-4", tp, f"b{machine.broker_id} has {entry}, another replica {known[0]}"
            )
        elif previous is not None and known[1] is not None and known[1] != previous:
            if previous.last < self._deleted[tp]:
                return
            self.violated(
                "I-4",
                tp,
                f"b{machine.broker_id} has {previous} before {entry}, another replica {known[1]}",
            )
        elif known[1] is None and previous is not None:
            self._ledger[tp, entry.base, entry.epoch] = (entry, previous)

    def _changed(
        self,
        machine: Machine,
        tp: TopicPartition,
        partition: Partition,
        log: PartitionLog,
        view: View,
    ) -> None:
        shadow, broker_id = view.shadow, machine.broker_id
        if shadow.cuts != log.snapshot.version or log.log_end_offset < shadow.end:
            self._cut(machine, tp, partition, view)
        elif log.log_end_offset > shadow.end:
            self._grew(machine, tp, partition, view)
            self._durability.grew(machine, tp, shadow)
        self._durability.changed(machine, tp, shadow, partition)
        if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
            self.violated(
                "I-5",
                tp,
                f"b{broker_id}: log start {log.log_start_offset}, high watermark "
                f"{log.high_watermark}, log end {log.log_end_offset}",
            )
        epochs = partition.leader_epoch, partition.partition_epoch
        if epochs < (view.leader_epoch, view.partition_epoch):
            self.violated("I-8", tp, f"b{broker_id} goes back to epochs {epochs}")
        if partition.is_leader:
            self._leader_changed(machine, tp, partition, log, view)
            self._highest[tp] = max(self._highest[tp], log.high_watermark)
        elif log.high_watermark > self._highest[tp]:
            self.violated(
                "I-5",
                tp,
                f"follower b{broker_id} takes {log.high_watermark} for committed, which "
                f"no leader does: {self._highest[tp]}",
            )
        view.leader_epoch, view.partition_epoch = epochs
        view.leads, view.isr = partition.is_leader, partition.isr
        view.high_watermark = log.high_watermark

    def _grew(self, machine: Machine, tp: TopicPartition, partition: Partition, view: View) -> None:
        """Check new batches (I-4, I-7, I-11)."""
        shadow, note = view.shadow, self._cluster.scheduler.note
        view.undone = {}
        previous = shadow.entries.get(shadow.end - 1)
        for entry in shadow.read_new():
            if previous is not None and entry.base != previous.last + 1:
                self.violated("I-11", tp, f"b{machine.broker_id} has {entry} after {previous}")
            if previous is not None and entry.epoch < previous.epoch:
                self.violated("I-8", tp, f"b{machine.broker_id} has {entry} after {previous}")
            self._note_entry(machine, tp, entry, previous)
            note(f"b{machine.broker_id} {tp} appends {entry.base}-{entry.last} of {entry.epoch}")
            previous = entry
            if partition.is_leader and entry.epoch == partition.leader_epoch:
                me = (machine.broker_id, machine.starts)
                if self._accepted.setdefault((tp, entry.epoch), me) != me:
                    self.violated(
                        "I-7",
                        tp,
                        f"b{machine.broker_id} appends in epoch {entry.epoch}, as "
                        f"b{self._accepted[tp, entry.epoch][0]} did",
                    )

    def _cut(self, machine: Machine, tp: TopicPartition, partition: Partition, view: View) -> None:
        """A truncation must not go below the point where the two logs diverge (I-12)."""
        shadow = view.shadow
        before, end = shadow.entries, shadow.end
        start = view.state[3] if view.state else 0
        shadow.read_all()
        kept = end
        for offset in range(shadow.start, end):
            # Not if the log was empty: one that begins inside a batch takes the whole batch (S-34).
            if offset in before and shadow.entries.get(offset) != before[offset]:
                kept = offset
                break
        if kept >= end and shadow.end >= end:
            return
        self.counters["truncations"] += 1
        view.undone = {**view.undone, **before}
        self._cluster.scheduler.note(f"b{machine.broker_id} {tp} cuts from {end} to {kept}")
        previous = None
        for entry in dict.fromkeys(shadow.entries[o] for o in sorted(shadow.entries)):
            self._note_entry(machine, tp, entry, previous)
            previous = entry
        rule_cuts_exactly = self._cluster.plan.truncation == "fetch"
        leader = self.view(partition.leader_id, tp)
        if (
            rule_cuts_exactly
            and not partition.is_leader
            and leader is not None
            and leader.leads
            and leader.leader_epoch == partition.leader_epoch
            and self._cluster.machines[partition.leader_id].starts == leader.incarnation
            and self._cluster.machines[partition.leader_id].up
            and leader.shadow.start <= kept  # what was below may have diverged from ours
        ):
            theirs = leader.shadow
            parts = min(end, theirs.end)
            for offset in range(max(theirs.start, shadow.start), parts):
                ours = before.get(offset)
                if ours != theirs.entries.get(offset):
                    # The batch is removed whole, although the leader's log may begin inside it.
                    parts = offset if ours is None else ours.base
                    break
            if kept < parts:
                self.violated(
                    "I-12",
                    tp,
                    f"b{machine.broker_id} cuts to {kept}, although its log "
                    f"[{start}, {end}) agrees with that of leader b{partition.leader_id} up to "
                    f"{parts}",
                )
        registration = self.registrations.get(tp)
        if registration is not None and machine.broker_id in registration.isr:
            self.registered.check_member(machine.broker_id, tp, "after a truncation")

    # -- leaders -------------------------------------------------------------------------------

    def _leader_changed(
        self,
        machine: Machine,
        tp: TopicPartition,
        partition: Partition,
        log: PartitionLog,
        view: View,
    ) -> None:
        high_watermark = log.high_watermark
        self._deleted[tp] = max(self._deleted[tp], log.log_start_offset)
        begins = not view.leads or partition.leader_epoch != view.leader_epoch
        if begins:
            self.counters["leaderships"] += 1
            self._cluster.scheduler.note(
                f"b{machine.broker_id} {tp} leads in epoch {partition.leader_epoch} from "
                f"{log.log_end_offset}, high watermark {high_watermark}"
            )
            view.led_from = high_watermark
            self.unclean.leads(tp, machine.broker_id, partition.leader_epoch)
            registration = self.registrations.get(tp)
            if registration is not None and registration.leader_epoch == partition.leader_epoch:
                self.check_committed(
                    "I-1", machine.broker_id, tp, f"elected in epoch {partition.leader_epoch}"
                )
        elif high_watermark < view.high_watermark:
            self.violated(
                "I-5",
                tp,
                f"leader b{machine.broker_id} lowers its high watermark from "
                f"{view.high_watermark} to {high_watermark}",
            )
        before = view.led_from if begins else view.high_watermark
        if high_watermark <= before and not begins:
            return
        if high_watermark > before:
            size = max(len(partition.isr.committed), len(view.isr.committed))
            replicas = max(1, len(partition.replicas))
            if size < min(self._min_isr, replicas):
                self.violated(
                    "I-5",
                    tp,
                    f"leader b{machine.broker_id} moves its high watermark to "
                    f"{high_watermark} with an ISR of {size}",
                )
        self._commit(machine, tp, partition, view, high_watermark)

    def _commit(
        self, machine: Machine, tp: TopicPartition, partition: Partition, view: View, end: int
    ) -> None:
        """The committed records of leaders never differ, and both ISRs have them: the leader's own
        (I-3), and together with the ELR that of the controller, which may have elected another
        leader (I-2).
        """
        committed, shadow = self.committed[tp], view.shadow
        new = []
        offsets = range(max(shadow.start, view.high_watermark if view.leads else 0), end)
        if self.unclean.is_overtaken(tp, partition.leader_epoch):
            self.unclean.commits_late(tp, shadow, filter(shadow.entries.get, offsets))
            return
        for offset in offsets:
            entry = shadow.entries.get(offset)
            if entry is None:
                continue
            known = committed.get(offset)
            if known is None:
                committed[offset] = entry
                new.append(offset)
            elif known != entry:
                self.violated(
                    "I-2",
                    tp,
                    f"leader b{machine.broker_id} commits {entry} at {offset}, where "
                    f"{known} was committed",
                )
                return
        if not new:
            return
        self.unclean.committed(tp, shadow, new)
        registration = self.registrations.get(tp)
        members = dict.fromkeys(
            m for m in partition.isr.committed if not self._has_begun_anew(partition, tp, m)
        )
        if registration is not None:
            members.update(dict.fromkeys((*registration.isr, *registration.elr)))
        for member in members:
            other = self.live_view(member, tp)
            if other is None or member == machine.broker_id:
                continue
            for offset in new:
                if offset >= other.shadow.start and other.shadow.entries.get(
                    offset
                ) != shadow.entries.get(offset):
                    self.violated(
                        "I-3",
                        tp,
                        f"leader b{machine.broker_id} moves its high watermark to {end};"
                        f" b{member} of the ISR has "
                        f"{other.shadow.entries.get(offset) or 'nothing'} at {offset}",
                    )
                    return

    def _has_begun_anew(self, leader: Partition, tp: TopicPartition, broker_id: int) -> bool:
        """Whether the replica's log began again since the last fetch that the leader knows.

        A fetch may arrive after its sender lost power, and still counts. That replica is one of
        those that may forget (KIP-966), and no promise relies on it once the controller has removed
        it from the ISR. The same holds if the partition was moved away from its sender and back,
        and this leader does not know it.
        """
        known, broker = leader.progress_of(broker_id), self._cluster.machines[broker_id].broker
        view = self.live_view(broker_id, tp)
        if view is not None and view.began_in > leader.leader_epoch:
            return True
        return (
            known is not None
            and broker is not None
            and UNKNOWN_EPOCH != known.broker_epoch < broker.broker_epoch
        )

    def live_view(self, broker_id: int, tp: TopicPartition) -> View | None:
        """The view of a replica that is up, in an incarnation that the controller has processed."""
        machine = self._cluster.machines[broker_id]
        view = self.view(broker_id, tp)
        if view is None or machine.broker is None or view.incarnation != machine.starts:
            return None
        if self.registered.broker_epochs.get(broker_id) != machine.broker.broker_epoch:
            return None
        if view.shadow.log.failed or self._cluster.atlas.is_damaged(broker_id):
            return None
        return view

    def check_committed(self, number: str, broker_id: int, tp: TopicPartition, what: str) -> None:
        view = self._views[broker_id][tp]
        if self._cluster.atlas.is_damaged(broker_id):
            return
        entries, start = view.shadow.entries, max(view.shadow.start, self._deleted[tp])
        for offset, entry in self.committed[tp].items():
            if offset >= start and entries.get(offset) != entry:
                self.violated(
                    number,
                    tp,
                    f"b{broker_id}, {what}, has {entries.get(offset) or 'nothing'} at {offset}; "
                    f"{entry} was committed",
                )
                return

    def view(self, broker_id: int, tp: TopicPartition) -> View | None:
        return self._views.get(broker_id, {}).get(tp)


def _is_kept(machine: Machine, tp: TopicPartition, log: PartitionLog) -> bool:
    """Whether the next process will have the log: it is hosted, or was when its disk failed."""
    assert machine.broker is not None
    if machine.broker.log_manager.logs.get(tp) is log:
        return True
    return log.failed and machine.disk.peek(log.segments[-1].log_path) is not None
