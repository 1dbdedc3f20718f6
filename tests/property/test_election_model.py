"""Any sequence of events keeps a registration in order, and a clean leader has everything."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem
from replication.common.state import NO_LEADER, PartitionRegistration, RecoveryState, TopicPartition
from replication.decisions.election import Mode, change, check_alter, is_already_applied

BROKERS = (1, 2, 3, 4)
TP = TopicPartition("t", 0)


class Event(NamedTuple):
    kind: str
    broker: int
    clean: bool


events = st.lists(
    st.builds(
        Event,
        st.sampled_from(
            ["die", "return", "bounce", "join", "shrink", "preferred", "unclean", "stale", "move"]
        ),
        st.sampled_from(BROKERS),
        st.booleans(),
    ),
    max_size=40,
)


class Model:
    """``complete`` are the replicas that hold every committed record.

    Records are committed whenever the gate is open (R-21): then only members of the ISR have all
    of them. Who stopped uncleanly may have lost some; an unclean election makes its leader's log
    the measure.
    """

    def __init__(self, min_isr: int, elr_enabled: bool) -> None:
        self.min_isr, self.elr_enabled = min_isr, elr_enabled
        self.alive = set(BROKERS)
        self.now = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 0, 0)
        self.complete = {1, 2, 3}

    def step(self, event: Event) -> None:
        if event.kind == "die":
            self.leave(event.broker)
        elif event.kind == "return":
            self.come(event.broker, event.clean)
        elif event.kind == "bounce":
            self.leave(event.broker)
            self.come(event.broker, event.clean)
        elif event.kind == "join":
            self.alter((*self.now.isr, event.broker), event.broker)
        elif event.kind == "shrink":
            self.alter(tuple(r for r in self.now.isr if r != event.broker))
        elif event.kind == "stale":
            self.alter(self.now.isr[:1], age=1)
        elif event.kind == "preferred":
            self.change(mode=Mode.PREFERRED)
        elif event.kind == "unclean":
            self.change(mode=Mode.UNCLEAN)
        else:
            self.move(event.broker)

    def leave(self, broker: int) -> None:
        if broker in self.alive:
            self.alive.remove(broker)
            self.change(isr=[r for r in self.now.isr if r != broker])

    def come(self, broker: int, clean: bool) -> None:
        if broker in self.alive:
            return
        if not clean:
            self.complete.discard(broker)
            self.change(unclean_replicas=[broker])
        self.alive.add(broker)
        self.change()

    def alter(self, isr: tuple[int, ...], joining: int = NO_LEADER, age: int = 0) -> None:
        now = self.now
        item = AlterPartitionItem(
            TP, now.leader_epoch, now.partition_epoch - age, tuple((r, -1) for r in isr)
        )
        error = check_alter(now, item, now.leader, lambda broker, epoch: broker in self.alive)
        if is_already_applied(now, item, now.leader):
            assert error is ErrorCode.INVALID_UPDATE_VERSION
        if now.leader == NO_LEADER or error is not ErrorCode.NONE:
            return
        assert age == 0
        if joining != NO_LEADER:
            self.complete.add(joining)  # a leader proposes nobody else
        self.change(isr=isr, recovery_state=RecoveryState.RECOVERED)

    def move(self, broker: int) -> None:
        """One more replica, or one less when it is safe (R-62)."""
        replicas = self.now.replicas
        if broker not in replicas:
            self.change(replicas=(*replicas, broker))
        elif set(self.now.isr) - {broker}:
            self.change(replicas=tuple(r for r in replicas if r != broker))

    def change(self, **event: object) -> None:
        now = self.now
        after = change(
            now,
            self.alive.__contains__,
            min_isr=min(self.min_isr, len(now.replicas)),
            elr_enabled=self.elr_enabled,
            **event,  # type: ignore[arg-type]
        )
        self.check_step(now, after)
        self.check_state(after)
        self.now = after
        recovering = after.recovery_state is RecoveryState.RECOVERING
        if after.leader_epoch > now.leader_epoch and recovering and after.isr == (after.leader,):
            self.complete = {after.leader}  # what it lacks is lost, and everybody knows
        if self.elr_enabled:
            if after.leader != NO_LEADER:
                assert after.leader in self.complete
            assert {*after.isr, *after.elr} <= self.complete
        if after.leader != NO_LEADER and len(after.isr) >= min(self.min_isr, len(after.replicas)):
            self.complete &= set(after.isr)

    def check_step(self, now: PartitionRegistration, after: PartitionRegistration) -> None:
        if after == now:
            assert after is now
            return
        assert after.partition_epoch == now.partition_epoch + 1
        assert after.leader_epoch - now.leader_epoch in (0, 1)
        if after.leader != now.leader or set(now.replicas) - set(after.replicas):
            assert after.leader_epoch == now.leader_epoch + 1
        if after.leader != now.leader and after.leader != NO_LEADER:
            assert after.leader in self.alive

    def check_state(self, state: PartitionRegistration) -> None:
        members = [*state.isr, *state.elr]
        assert len(set(members)) == len(members)
        assert set(members) <= set(state.replicas)
        if state.leader != NO_LEADER:
            assert state.leader in state.isr
            assert state.last_known_leader == NO_LEADER
        if len(state.isr) >= min(self.min_isr, len(state.replicas)) or not self.elr_enabled:
            assert state.elr == ()
        if not self.elr_enabled:
            assert state.isr
            assert state.last_known_leader == NO_LEADER
        elif not members:
            assert state.last_known_leader != NO_LEADER


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(events, st.integers(1, 4), st.booleans())
@pytest.mark.slow
def test_any_sequence_of_events(sequence: list[Event], min_isr: int, elr_enabled: bool) -> None:
    """R-50 … R-58, R-67 … R-71."""
    model = Model(min_isr, elr_enabled)
    for event in sequence:
        model.step(event)
