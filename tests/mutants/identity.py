"""Brokers that believe directories and trees which are not theirs, or not whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logstore.manager import loading as loading_module
from logstore.manager.loading import Loader
from logstore.manager.topics import Topics
from replication.broker import proofs as proofs_module
from replication.broker.identity import TreeIdentity
from replication.broker.proofs import LogProofs
from replication.common.state import BrokerRegistration
from replication.controller import partitions as decisions_module
from replication.decisions.election import change
from replication.decisions.strays import Belonging
from replication.replica_manager import role_changes as role_changes_module
from replication.replica_manager.role_changes import RoleChanges
from tests.mutants import MonkeyPatch, mutant


@mutant()
def any_tree_is_joined(patch: MonkeyPatch) -> None:
    """A broker takes the tree of another cluster for its own."""
    anybody = TreeIdentity("", has_kafkas_placement=True)
    patch.setattr(proofs_module, "settle_identity", lambda *args: anybody)
    patch.setattr(proofs_module, "check_cluster_id", lambda *args: anybody)
    patch.setattr(RoleChanges, "_is_foreign", lambda self, places: False)


@mutant()
def logs_are_set_aside_on_suspicion(patch: MonkeyPatch) -> None:
    """A log of whose topic the tree knows nothing goes like one that has moved."""
    gone = role_changes_module.GONE | {Belonging.UNKNOWN}
    patch.setattr(role_changes_module, "GONE", gone)


@mutant()
def all_logs_go_at_once(patch: MonkeyPatch) -> None:
    """A tree that knows none of the logs of a broker is believed."""
    patch.setattr(RoleChanges, "_is_foreign", lambda self, places: False)


@mutant()
def a_missing_log_is_trusted(patch: MonkeyPatch) -> None:
    """A replica without its log counts as one that stopped cleanly."""
    patch.setattr(loading_module, "_unproven", lambda *args: frozenset())


@mutant()
def an_older_log_is_trusted(patch: MonkeyPatch) -> None:
    """A log that ends before its last clean stop counts as whole."""
    last_stop = Loader.last_stop

    def mutant(self: Loader) -> Any:
        stop, live = last_stop(self), self._directories.live()
        present = {tp for log_dir in live for tp in log_dir.logs}
        epochs = max((log_dir.broker_epochs for log_dir in live), key=lambda each: each[-1:])
        return replace(stop, broker_epochs=epochs, unproven=stop.unproven - present)

    patch.setattr(Loader, "last_stop", mutant)


@mutant()
def an_older_directory_is_trusted(patch: MonkeyPatch) -> None:
    """Any epoch of a clean stop proves one."""

    def continues(self: BrokerRegistration, broker_epoch: int) -> bool:
        return self.previous_broker_epoch >= 0

    patch.setattr(BrokerRegistration, "continues", continues)


@mutant()
def what_is_lost_may_lead(patch: MonkeyPatch) -> None:
    """A replica without its log is elected as the last leader that is known."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        lost = rest.pop("lost_replicas", ())
        rest["unclean_replicas"] = (*rest.get("unclean_replicas", ()), *lost)
        return change(now, acceptable, **rest)

    patch.setattr(decisions_module, "change", mutant)


@mutant()
def a_stop_forgets_what_was_unproven(patch: MonkeyPatch) -> None:
    """A stop proves what no controller has heard of yet."""
    known = property(lambda self: self._first_epoch >= 0)
    patch.setattr(LogProofs, "_is_known", known)


@mutant()
def strays_never_come_back(patch: MonkeyPatch) -> None:
    """An empty log is made beside the one that was set aside."""
    patch.setattr(Topics, "_revive", lambda self, tp, topic_id: None)
