"""``Mirror``: a log directory that follows the topics of a live cluster."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Self

from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import InvariantError, LogstoreError, StorageFailedError
from logstore.manager import DirectoryContent, LogManager, ManagerOwner
from logstore.manager.duties import BACKGROUND, Duty
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path
from replication.common.addresses import address_of
from replication.common.errors import SaslAuthenticationError
from replication.common.runtime import ThreadRuntime
from replication.mirror.config import MirrorConfig
from replication.mirror.decisions import Replaced, decide
from replication.mirror.errors import MirrorRefusedError, SourceUnreachableError
from replication.mirror.following import Following
from replication.mirror.identity import MirrorFile, MirrorIdentity, refusal, settle
from replication.mirror.report import MirrorEventKind, MirrorReport
from replication.mirror.source import (
    ConfigValues,
    MirrorSource,
    SourceLeader,
    SourceView,
    known_config,
)
from replication.mirror.status import MirrorStatus, PartitionState
from replication.mirror.watch import Watch
from replication.security.config import ClientProperties
from replication.wire.access import ClusterAccess, join
from replication.wire.transport import TcpTransport

ASK_AGAIN_MS = 200  # for ends that a leader could not tell
RETENTION_INTERVAL_MS = 30_000
_STUCK = (PartitionState.FAILED, PartitionState.REFUSED, PartitionState.GONE)


class Mirror:
    """Follows topics of a live Kafka as a consumer that keeps everything. Use it as a context
    manager, or call ``close``; the next start recovers if neither is done.

    Args:
        access: the keys of a client, ``bootstrap.servers`` among them.
        directory: where the mirror is, or is to be; a copied log directory of the source may be
            there already.
    Attributes:
        report: what was not mirrored as it came.
        log_manager: the logs, while it runs.
        unmatched: patterns that match no topic which the source shows.

    Example::

        with Mirror(client_properties({"bootstrap.servers": "kafka:9092"}), "mirror") as mirror:
            mirror.start()
            mirror.catch_up(60_000)
    """

    def __init__(
        self,
        access: ClientProperties,
        directory: str | os.PathLike[str],
        config: MirrorConfig | None = None,
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config or MirrorConfig()
        self._storage = storage or LocalStorage()
        self._clock = clock or SystemClock()
        self.directory = absolute_path(self._storage, os.fspath(directory)).rstrip("/") or "/"
        self.report = MirrorReport(self.directory, self._storage, self._clock)
        self.log_manager: LogManager | None = None
        self.unmatched: tuple[str, ...] = ()
        self._access = access
        self._is_chosen = self.config.choice()
        self._identity: MirrorIdentity | None = None
        self._runtime: ThreadRuntime | None = None
        self._transport: TcpTransport | None = None
        self._following: Following | None = None
        self._watch: Watch | None = None
        self._configs: dict[str, Mapping[str, str]] = {}
        self._unknown_configs: set[str] = set()  # reasons that were reported
        self._failure: LogstoreError | None = None
        self._answered_ms: int | None = None
        self._unreachable = ""
        self._closed = False
        self._ends: dict[TopicPartition, int] = {}
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow.

        Raises:
            SourceUnreachableError: the directory is new, and no broker of the source can be asked.
                The text says why. A mirror that is there begins without, and goes on trying.
            SaslAuthenticationError: the source refuses the login.
            MirrorRefusedError: the directory is no mirror of this source.
            LogDirLockedError: it is open elsewhere.
            StorageFailedError, CheckpointError, OSError: the disk refused, or ``mirror.json`` is
                malformed.
            ConfigError: TLS cannot be set up, or ``bootstrap.servers`` is malformed.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        keys, config = self._access.config, self.config
        access = ClusterAccess.of(keys)
        view, reason = self._first_view(access)
        self._unreachable = reason
        known = MirrorFile.of(self.directory, self._storage).read()
        if view is None and known is None:
            raise SourceUnreachableError(reason)
        identity = settle(self.directory, self._storage, self._wanted, view, self._is_chosen)
        self._open(identity)
        self.report.open()
        runtime = self._runtime = ThreadRuntime("mirror", self._clock)
        # Each connection asks who is there: somebody else may have the address by now.
        greet = partial(join, keys, identity.cluster_id)
        transport = self._transport = TcpTransport(access._replace(greet=greet), self._clock)
        assert self.log_manager is not None
        following = self._following = Following(
            self.log_manager,
            self._storage,
            runtime,
            transport,
            config,
            self.report,
            on_progress=self._on_progress,
            on_stale_metadata=lambda: self._watch.hurry() if self._watch is not None else None,
        )
        source = MirrorSource(transport, keys.request_timeout_ms)
        watch = self._watch = Watch(
            runtime,
            source,
            config,
            self._is_chosen,
            apply=self._apply,
            on_unreachable=self._note_unreachable,
            on_configs=self._take_configs,
        )
        self._source = source
        duties = (
            Duty(
                "highwatermark-checkpoint",
                config.replication.high_watermark_checkpoint_interval_ms,
                self.log_manager.housekeeper.checkpoint_high_watermarks,
                BACKGROUND,
                at_once=True,
            ),
            Duty("mirror-retention", RETENTION_INTERVAL_MS, following.delete_released, BACKGROUND),
        )
        # Neither retention nor compaction of ours: the source decides what goes.
        self.log_manager.start(duties, configured=dict)
        watch.start()

    def _first_view(self, access: ClusterAccess) -> tuple[SourceView | None, str]:
        """What the source shows, and why not if it does not."""
        transport = TcpTransport(access, self._clock)
        try:
            answered = threading.Event()
            found: list[SourceView | None] = []

            def on_view(view: SourceView | None) -> None:
                found.append(view)
                answered.set()

            timeout_ms = self._access.config.request_timeout_ms
            MirrorSource(transport, timeout_ms).ask_view(on_view)
            answered.wait(timeout_ms * (1 + len(access.servers)) / 1000)
            view = found[0] if found else None
            failures = transport.failures() if view is None else []
        finally:
            transport.close()
        for failure in failures:
            if isinstance(failure, SaslAuthenticationError):
                raise failure
        return view, _why_nobody_answers(failures)

    def _wanted(self, cluster_id: str) -> MirrorIdentity:
        servers = ",".join(address_of(*each) for each in self._access.config.servers)
        return MirrorIdentity(
            cluster_id,
            servers,
            keep_deleted=self.config.keep_deleted,
            topics=self.config.topics,
        )

    def _open(self, identity: MirrorIdentity) -> None:
        """Open the logs. ``mirror.json`` is written under their lock, before the first record."""
        self.log_manager = LogManager(
            self.directory,
            storage=self._storage,
            clock=self._clock,
            background=False,
            owner=ManagerOwner(
                cluster_id=identity.cluster_id,
                replicated=True,
                on_directory_failure=self._on_directory_failure,
            ),
        )
        self._identity = identity
        file = MirrorFile.of(self.directory, self._storage)
        # It may have been promoted since we looked, before we had the lock.
        reason = refusal(DirectoryContent(None, {}), file.read(), identity.cluster_id)
        if reason is not None:
            raise MirrorRefusedError(self.directory, reason)
        file.write(identity)

    def close(self) -> None:
        """Follow nobody any more, and close the logs. Idempotent.

        Raises:
            StorageFailedError: as of `LogManager.close`.
        """
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._changed.notify_all()
        if self._watch is not None:
            self._watch.close()
        if self._following is not None:
            self._following.close()
        if self._transport is not None:
            self._transport.close()
        try:
            if self.log_manager is not None:
                self._close_logs(self.log_manager)
        finally:
            self.report.close()
            if self._runtime is not None:
                self._runtime.close()

    def _close_logs(self, manager: LogManager) -> None:
        if manager.duties is not None:
            manager.duties.stop(wait=True)
        try:
            if self._failure is None:
                manager.housekeeper.checkpoint_high_watermarks()
        finally:
            manager.close()

    def _on_directory_failure(self, path: str, error: LogstoreError) -> None:
        """Under locks of a log: only note it."""
        self._failure = error
        watch = self._watch
        if watch is not None:
            watch.post(self._stop_following)

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.close()
        with self._changed:
            self._changed.notify_all()

    @property
    def failure(self) -> LogstoreError | None:
        """Why the mirror as a whole does not go on: its disk refused, or an error of ours. Nothing
        is appended any more; close it."""
        return self._failure

    # -- the source ----------------------------------------------------------------------------

    def _apply(self, view: SourceView, retry: bool, confirmed: Collection[uuid.UUID] = ()) -> None:
        """On the watch's actor. ``confirmed``: ids that most brokers name."""
        following, identity = self._following, self._identity
        assert following is not None
        assert identity is not None
        self._answered_ms, self._unreachable = self._now_ms(), ""
        self.unmatched = self.config.unmatched(view.topics)
        if following.dead_fetchers and self._failure is None:
            self._failure = InvariantError("a fetcher has ended with an error, which the log has")
            self._stop_following()
        if view.cluster_id not in (None, identity.cluster_id) or self._failure is not None:
            return
        try:
            here = following.local(retry=retry)
        except OSError as error:  # what is to be said cannot be: nobody would know of it
            self._failure = StorageFailedError(self.report.path, "write", str(error))
            self._stop_following()
            return
        plan = decide(view, here, self._is_chosen, confirmed)
        following.apply(plan, self._configs)
        watch = self._watch
        assert watch is not None
        if plan.doubted and not confirmed:
            doubted = frozenset(plan.doubted)
            self._source.ask_ids(
                doubted, lambda ids: watch.post(partial(self._settle_ids, view, doubted, ids))
            )
        if plan.older:
            asked = {
                each.tp: SourceLeader(each.leader_id, each.leader_epoch) for each in plan.older
            }
            self._source.ask_leaderships(
                asked, lambda tps: watch.post(partial(self._begin_again, tps))
            )
        with self._changed:
            self._changed.notify_all()

    def _settle_ids(
        self, view: SourceView, doubted: frozenset[str], ids: Mapping[str, uuid.UUID]
    ) -> None:
        """One broker names other ids of topics than the logs have; most brokers name ``ids``. On
        the watch's actor."""
        for topic in doubted - ids.keys():
            reason = "the source's brokers do not agree on which topic has the name"
            self.report.add_once(MirrorEventKind.CONTRADICTION, topic, reason)
        if ids:
            self._apply(view, False, frozenset(ids.values()))
        if doubted - ids.keys() and self._watch is not None:
            self._watch.hurry()

    def _begin_again(self, tps: Collection[TopicPartition]) -> None:
        """Leaders lead these in earlier epochs than the logs have, at a source without topic ids:
        the topics were made anew, with all their partitions. On the watch's actor."""
        following, watch, manager = self._following, self._watch, self.log_manager
        assert following is not None
        assert watch is not None
        assert manager is not None
        topics = manager.topics()
        for topic in {tp.topic for tp in tps} & topics.keys():
            reason = "its leader epochs fell, at a source without topic ids: it was made anew"
            following.set_aside(Replaced(topic, tuple(topics[topic])), reason)
        watch.refresh()

    def _note_unreachable(self) -> None:
        transport = self._transport
        self._unreachable = _why_nobody_answers([] if transport is None else transport.failures())
        if self._watch is not None:
            self._watch.hurry()

    def _take_configs(self, found: Mapping[str, ConfigValues], refused: Mapping[str, str]) -> None:
        """On the watch's actor."""
        known = {topic: known_config(values) for topic, values in found.items()}
        changed = {
            topic: config for topic, config in known.items() if self._configs.get(topic) != config
        }
        self._configs |= changed
        if changed and self._following is not None:
            self._following.configure(changed)
        # Each reason once: with thousands of topics the answer comes in pieces, again and again.
        for why in sorted({*refused.values()} - self._unknown_configs):
            self._unknown_configs.add(why)
            some = ", ".join([topic for topic, own in refused.items() if own == why][:5])
            reason = f"of topics such as {some}: {why}"
            self.report.add(MirrorEventKind.CONFIG_UNKNOWN, "*", reason)

    # -- how far it is -------------------------------------------------------------------------

    def _on_progress(self, tps: Iterable[TopicPartition]) -> None:
        self._answered_ms = self._now_ms()
        if self._ends:
            with self._changed:
                self._changed.notify_all()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    @property
    def status(self) -> MirrorStatus:
        following, identity = self._following, self._identity
        answered_ms = self._answered_ms
        return MirrorStatus(
            "" if identity is None else identity.cluster_id,
            {} if following is None or self._closed else following.status(),
            None if answered_ms is None else max(0, self._now_ms() - answered_ms),
            self._unreachable,
            "" if self._failure is None else str(self._failure),
            self.report.findings,
            0 if following is None else following.former_bytes,
            0 if following is None else following.former_cuts,
        )

    @property
    def moved(self) -> int:
        """A number that is another one after each step ahead: it shows, for little, that the
        source's answers and the making of logs go on."""
        following, watch, manager = self._following, self._watch, self.log_manager
        if following is None or watch is None or manager is None:
            return 0
        return following.received + len(manager.logs) + bool(watch.rounds)

    def catch_up(self, timeout_ms: int) -> bool:
        """Wait until each partition has reached the end that the source's has at this call.

        False if that took longer, or if all that are missing are stuck: the status says which. For
        one thread at a time.

        Raises:
            LogstoreError: the mirror as a whole does not go on.
        """
        deadline_ms = self._now_ms() + timeout_ms
        watch, following = self._watch, self._following
        assert watch is not None
        assert following is not None
        rounds = watch.rounds
        watch.refresh(retry=True)
        self._ends = {}
        try:
            with self._changed:
                if not self._wait_for(lambda: watch.rounds > rounds, deadline_ms):
                    return False
            return self._catch_up(following, deadline_ms)
        finally:
            self._ends = {}

    def _catch_up(self, following: Following, deadline_ms: int) -> bool:
        leaders = following.leaders
        missing = set(self._chosen_here(following))
        while missing:
            if self._closed:
                return False
            asked = {tp: leaders[tp] for tp in missing if tp in leaders and tp not in self._ends}
            if asked:
                self._source.ask_ends(asked, self._take_ends)

            with self._changed:
                step_ms = self._now_ms() + ASK_AGAIN_MS
                self._wait_for(partial(self._have_reached, missing), min(deadline_ms, step_ms))
            missing = self._missing(missing)
            status = following.status()
            if missing and all(tp in status and status[tp].state in _STUCK for tp in missing):
                return False
            if missing and (self._closed or self._now_ms() >= deadline_ms):
                return False
            leaders = following.leaders
        return True

    def _chosen_here(self, following: Following) -> list[TopicPartition]:
        gone = PartitionState.GONE
        return [
            tp
            for tp, each in following.status().items()
            if self._is_chosen(tp.topic) and each.state is not gone
        ]

    def _have_reached(self, tps: Iterable[TopicPartition]) -> bool:
        return not self._missing(tps)

    def _missing(self, tps: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those that have not reached the end that is known, or whose end is not known."""
        following, ends = self._following, self._ends
        assert following is not None
        return {tp for tp in tps if tp not in ends or not following.has_reached(tp, ends[tp])}

    def _take_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        with self._changed:
            self._ends = {**self._ends, **ends}
            self._changed.notify_all()

    def _wait_for(self, is_done: Callable[[], bool], deadline_ms: int) -> bool:
        """Wait for a change. ``_changed`` is held."""
        while not is_done():
            if self._failure is not None:
                raise self._failure
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0 or self._closed:
                return False
            self._changed.wait(left_ms / 1000)
        return True


def _why_nobody_answers(failures: Iterable[Exception]) -> str:
    return "; ".join(dict.fromkeys(map(str, failures))) or "no broker answers"


__all__ = ["Mirror"]
