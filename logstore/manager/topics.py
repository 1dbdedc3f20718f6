"""Creation and deletion of logs, and the configuration of topics.

A topic is known by its id; its name may stand for another topic later. So nothing that is stored by
name may outlive the logs. A deletion durably rewrites the checkpoints without them before their
names are free. A creation never takes over an existing directory.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from checkpoints.loggers import get_logger
from logstore.common.config import LogConfig
from logstore.common.errors import (
    ConfigError,
    InvalidTopicError,
    LogstoreError,
    LogUnavailableError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from logstore.common.parallel import TaskOutcome
from logstore.common.random_id import new_uuid
from logstore.common.shield import run_shielded, shielded
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.manager.claims import Claims
from logstore.manager.directories import Directories, TakenOut
from logstore.manager.future_logs import FutureLogs
from logstore.manager.loading import Unfinished
from logstore.manager.log_dir import Creation, LogDir
from logstore.manager.opener import Birth, LogCreator, LogOpener, Made, made_of
from logstore.manager.topic_configs import TopicConfig, TopicConfigs

logger = get_logger(__name__)

MAX_PARTITIONS = 2**31 - 1
P = ParamSpec("P")
T = TypeVar("T")
FillLogs = Callable[[list[PartitionLog]], None]


class WantedLog(NamedTuple):
    """A log to open, or to create where it is missing: as of ``LogManager.get_or_create``."""

    tp: TopicPartition
    topic_id: uuid.UUID | None = None
    config: TopicConfig | None = None
    is_new: bool = True


class Topics:
    """Creates, changes and deletes topics. Call it from any thread that holds no lock of a log.

    Args:
        threads: how many creations may wait for the disk at once.
        on_config: called with the configuration of logs that were added or have another one.
    """

    def __init__(
        self,
        directories: Directories,
        opener: LogOpener,
        configs: TopicConfigs,
        threads: int,
        on_config: Callable[[LogConfig], None],
    ) -> None:
        self.claims = Claims(directories.ownership)
        self.futures = FutureLogs(directories, opener, self.claims)
        self._directories = directories
        self._opener = opener
        self._configs = configs
        self._creator = LogCreator(opener, configs, self.claims, threads)
        self._on_config = on_config
        self._storage = opener.storage

    # -- one partition -------------------------------------------------------------------------

    def get_or_create(self, wanted: WantedLog) -> PartitionLog:
        log = self._directories.find(wanted.tp)
        if log is None:
            log, error = self.get_or_create_all([wanted])[wanted.tp]
            if error is not None:
                raise error
            assert log is not None
        if wanted.config is not None and not self._opener.owner.replicated:
            self.alter(wanted.tp.topic, wanted.config)
        return log

    @shielded
    def get_or_create_all(
        self, wanted: Iterable[WantedLog]
    ) -> dict[TopicPartition, TaskOutcome[PartitionLog]]:
        found: dict[TopicPartition, TaskOutcome[PartitionLog]] = {}
        sound = []
        for each in {each.tp: each for each in wanted}.values():
            try:
                _check_name(*each.tp)
                sound.append(each)
            except InvalidTopicError as error:
                found[each.tp] = TaskOutcome(None, error)
        with self.claims.of_all(each.tp for each in sound):
            missing = []
            for each in sound:
                try:
                    log = self._directories.find(each.tp)
                except LogstoreError as error:
                    found[each.tp] = TaskOutcome(None, error)
                    continue
                if log is None:
                    missing.append(each)
                else:
                    found[each.tp] = TaskOutcome(log, None)
            if missing:
                found |= self._create_missing(missing)
        return found

    def _create_missing(
        self, wanted: Iterable[WantedLog]
    ) -> dict[TopicPartition, TaskOutcome[PartitionLog]]:
        """The caller has a claim on them."""
        found: dict[TopicPartition, TaskOutcome[PartitionLog]] = {}
        births: list[Birth] = []
        with ExitStack() as rooms:
            for each in wanted:
                try:
                    topic_id = self._prepare(each)
                    log = None if topic_id is None else self._revive(each.tp, topic_id)
                    if log is None:
                        preferred = self.futures.preferred.pop(each.tp, None)
                        room = self._directories.room_for_one(
                            is_new=each.is_new, preferred=preferred
                        )
                        births.append(Birth(rooms.enter_context(room), each.tp, topic_id))
                    else:
                        found[each.tp] = TaskOutcome(log, None)
                except LogstoreError as error:
                    found[each.tp] = TaskOutcome(None, error)
            self._creator.create_all(births)
            try:
                self._directories.register(made_of(births))
            except LogstoreError as error:
                for birth in births:
                    birth.fail(error)
        for birth in births:
            found[birth.tp] = TaskOutcome(birth.log, birth.error)
            if birth.log is not None:
                self._on_config(birth.log.config)
        return found

    def _prepare(self, wanted: WantedLog) -> uuid.UUID | None:
        """Take the configuration of a new log over, and find its topic id.

        Raises:
            LogUnavailableError: the topic has logs, and none of them could be opened.
        """
        topic, topic_id, config = wanted.tp.topic, wanted.topic_id, wanted.config
        others = None if self._opener.owner.replicated else self.partitions(topic)
        if others is not None and not others:
            self._refuse_unavailable(topic)  # only these have the topic's id and configuration
        if config is not None and not others:  # otherwise it changes the whole topic's, later
            resolved = self._configs.resolve(config)
            if self._opener.owner.replicated or resolved != self._configs.of(topic):
                self._configs.set(topic, resolved, self._configs.next(topic, config))
        return self._topic_id(topic) if others and topic_id is None else topic_id

    def _revive(self, tp: TopicPartition, topic_id: uuid.UUID) -> PartitionLog | None:
        """Bring a log back that was set aside, since its topic has a place here again.

        It is scanned as after a crash. None if there is none, or the caller owns the topics.
        """
        for log_dir in self._directories.live() if self._opener.owner.replicated else ():
            name = self._guarded(log_dir, log_dir.stray_of, tp, topic_id)
            if name is None:
                continue
            log = self._guarded(log_dir, self._bring_back, log_dir, name, tp)
            self._directories.register([(log_dir, log)])
            self._on_config(log.config)
            return log
        return None

    def _bring_back(self, log_dir: LogDir, name: str, tp: TopicPartition) -> PartitionLog:
        aside, directory = posixpath.join(log_dir.path, name), log_dir.directory_of(tp)
        log_dir.offsets.forget_logs({tp})
        self._creator.clear_the_way(log_dir, tp)
        logger.warning("%s has a place here again and becomes %s", aside, directory)
        self._storage.rename(aside, directory)
        try:
            self._storage.sync_dir(log_dir.path)
            log = self._opener.load(log_dir, tp, self._configs.of(tp.topic), clean=False)
        except Exception:  # the next try finds it again, and makes no empty log in its place
            self._storage.rename(directory, aside)
            raise
        log_dir.strays[name.rpartition(".")[0]].remove(name)
        return log

    # -- topics --------------------------------------------------------------------------------

    def create(
        self, topic: str, partitions: int, config: TopicConfig | None, fill: FillLogs | None = None
    ) -> list[PartitionLog]:
        _check_count(topic, partitions)
        wanted = None if config is None else self._configs.resolve(config)
        with self.claims.of(topic):
            if fill is not None and len(self._directories.live()) != 1:
                raise ConfigError("a topic is created with its records in a single directory only")
            self._refuse_unavailable(topic)
            for tp in (*self._directories.logs(), *self._directories.unavailable()):
                if filenames.topics_collide(tp.topic, topic):
                    raise TopicExistsError(
                        f"topic {topic!r} is there already"
                        if tp.topic == topic
                        else f"topic {topic!r} collides with {tp.topic!r}"
                    )
            if config is not None and wanted is not None:
                self._configs.set(topic, wanted, self._configs.next(topic, config))
            try:
                topic_id = new_uuid(self._opener.owner.random_id)
                return self._create_all(topic, range(partitions), topic_id, fill)
            except BaseException:
                if not self.partitions(topic):  # else an interrupt came after the creation
                    self._configs.forget(topic)
                raise

    def add_partitions(self, topic: str, total: int) -> list[PartitionLog]:
        _check_count(topic, total)
        with self.claims.of(topic):
            known = self._known_partitions(topic)
            numbers = {*known, *self._unavailable(topic)}
            if total < max(numbers) + 1:
                raise InvalidTopicError(
                    f"topic {topic!r} has {max(numbers) + 1} partitions already"
                )
            missing = [p for p in range(total) if p not in numbers]
            topic_id = self._topic_id(topic) or new_uuid(self._opener.owner.random_id)
            for log in known.values():
                log.assign_topic_id(topic_id)
            return self._create_all(topic, missing, topic_id)

    def _create_all(
        self,
        topic: str,
        partitions: Sequence[int],
        topic_id: uuid.UUID,
        fill: FillLogs | None = None,
    ) -> list[PartitionLog]:
        """Create all partitions or none. None can be found before all exist and are filled."""
        if not partitions:
            return []
        tps = [TopicPartition(topic, partition) for partition in partitions]
        creation = Creation(topic_id, frozenset(tps), filled=fill is not None)
        with ExitStack() as rooms:
            room = self._directories.room_for_one
            births = [Birth(rooms.enter_context(room()), tp, topic_id) for tp in tps]
            concerned = list(dict.fromkeys(each.log_dir for each in births))
            made: list[Made] = []
            try:
                for log_dir in concerned:
                    self._guarded(log_dir, log_dir.creations.begin, creation)
                try:
                    run_shielded(partial(self._creator.create_all, births))
                finally:
                    made += made_of(births)
                for each in births:
                    if each.error is not None:
                        raise each.error
                logs = [log for _, log in made]
                if fill is not None:
                    fill(logs)
                    for log in logs:
                        log.flush()
                self._give_birth(creation, concerned, made)
            except BaseException:
                self._undo(creation, concerned, made)
                raise
        self._on_config(self._configs.of(topic))
        return logs

    @shielded
    def _give_birth(self, creation: Creation, dirs: Iterable[LogDir], made: list[Made]) -> None:
        """End a creation, so that its logs can be found. Then there is nothing left to undo."""
        for log_dir in dirs:
            self._guarded(log_dir, log_dir.creations.end, creation)
        self._directories.register(made)
        made.clear()

    @shielded
    def _undo(self, creation: Creation, dirs: Iterable[LogDir], made: Iterable[Made]) -> None:
        """Undo a creation.

        What fails now, the next start undoes, because the file is still there. A child that was
        forked while the topic was filled leaves it to its parent.
        """
        if self._directories.ownership.lost is not None:
            return
        try:
            _raise_first(self._retire((d, log.topic_partition, log) for d, log in made))
            for log_dir in dirs:
                if log_dir.failure is None:
                    self._guarded(log_dir, log_dir.creations.end, creation)
        except LogstoreError as error:
            logger.error("the creation of a topic failed and is not undone yet: %s", error)

    def finish_creations(self, unfinished: Unfinished) -> None:
        """At the start, undo creations that a crash or a failed disk interrupted, and finish those
        that lack only their end. If a directory is offline a creation stays as it is, and cannot be
        found.
        """
        rest = {creation.topic_id: creation for _, creation in unfinished.creations}
        for creation in rest.values():
            own = [
                (d, log)
                for d, log in unfinished.logs
                if log.topic_id == creation.topic_id and log.topic_partition in creation.partitions
            ]
            known = {
                tp
                for tp, log in self._directories.logs().items()
                if log.topic_id == creation.topic_id
            }
            born = {
                log.topic_partition: (d, log) for d, log in own if log.topic_partition not in known
            }
            complete = not creation.filled and creation.partitions <= known | born.keys()
            doomed = [made for made in own if not complete or made not in born.values()]
            missing = creation.partitions & self._directories.unavailable().keys()
            if (self._directories.offline() or missing) and not complete:
                logger.warning("a creation cannot be undone while a log of it is out of reach")
                for _, log in own:
                    log.crash()
                continue
            if doomed:
                names = ", ".join(sorted(log.name for _, log in doomed))
                logger.warning("a crash interrupted the creation of a topic; removed: %s", names)
            try:
                _raise_first(self._retire((d, log.topic_partition, log) for d, log in doomed))
                if complete:
                    self._directories.register(born.values())
                for log_dir, begun in unfinished.creations:
                    if begun == creation:
                        self._guarded(log_dir, log_dir.creations.end, creation)
            except LogstoreError as error:
                logger.error("the next start tries it again: %s", error)

    def delete(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogstoreError]:
        """Returns what failed. The caller has a claim on them."""
        tps = list(tps)
        self.futures.drop_claimed(tps)
        failed = self._retire(self._directories.take_out(tps))
        left = {tp.topic for tp in self._directories.logs()}
        for topic in {tp.topic for tp in tps} - left:
            self._configs.forget(topic)
        return failed

    def delete_all(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, LogstoreError]:
        with self.claims.of_all(tps):
            return self.delete(tps)

    def delete_partition(self, tp: TopicPartition) -> None:
        with self.claims.of_all([tp]):
            if tp not in self._directories.unavailable() and self._directories.find(tp) is None:
                raise UnknownTopicOrPartitionError(f"{tp} is not in a live directory")
            _raise_first(self.delete([tp]))

    def delete_topic(self, topic: str) -> None:
        with self.claims.of(topic):
            known = {*self.partitions(topic), *self._unavailable(topic)}
            if not known:
                raise UnknownTopicOrPartitionError(f"topic {topic!r} is not in a live directory")
            tps = [TopicPartition(topic, partition) for partition in sorted(known)]
            _raise_first(self.delete(tps))

    def set_aside(self, topic: str, partitions: Iterable[int]) -> None:
        tps = [TopicPartition(topic, partition) for partition in partitions]
        with self.claims.of(topic):
            found: list[tuple[LogDir, TopicPartition]] = []
            failure: LogstoreError | None = None
            self.futures.drop_claimed(tps)
            for log_dir, tp, log in self._directories.take_out(tps):
                try:
                    if log is not None:
                        log.close()  # so that it is whole for a later inspection
                    found.append((log_dir, tp))
                except LogstoreError as error:
                    failure = failure or error
            for log_dir in dict.fromkeys(log_dir for log_dir, _ in found):
                own = [tp for home, tp in found if home is log_dir]
                try:
                    self._guarded(log_dir, self._rename_strays, log_dir, own)
                except LogstoreError as error:
                    failure = failure or error
            if not self.partitions(topic):
                self._configs.forget(topic)
            if failure is not None:
                raise failure

    def _rename_strays(self, log_dir: LogDir, tps: Collection[TopicPartition]) -> None:
        """As in a deletion, first rename the directories, then drop their checkpoint entries.

        But the directories stay.
        """
        for tp in tps:
            name = log_dir.set_aside(
                tp, self._opener.owner.random_id(), "has no place here any more"
            )
            log_dir.add_stray(name)
        self._storage.sync_dir(log_dir.path)
        log_dir.offsets.forget_logs(tps)

    def _retire(self, logs: Iterable[TakenOut]) -> dict[TopicPartition, LogstoreError]:
        """Delete logs that can no longer be found. Returns those that are not deleted, and are
        unavailable until they are, with a `StorageFailedError` or `ResourceBusyError`.

        At each step a crash leaves either the log as it was or no log: first the directories are
        durably renamed, then their checkpoint entries are dropped. A start in between drops entries
        without a directory.
        """
        failed: dict[TopicPartition, LogstoreError] = {}
        delays: dict[LogDir, dict[TopicPartition, int]] = {}
        for log_dir, tp, log in logs:
            config = self._configs.of(tp.topic)
            if log is not None:
                log.crash()  # its content is not needed any more
                config = log.config
            delays.setdefault(log_dir, {})[tp] = config.file_delete_delay_ms
        for log_dir, own in delays.items():
            try:
                self._guarded(log_dir, self._delete_names, log_dir, own)
            except LogstoreError as error:
                failed |= dict.fromkeys(own, error)
                if log_dir.failure is None:
                    self._keep_undeleted(log_dir, own, str(error))
        return failed

    def _keep_undeleted(self, log_dir: LogDir, tps: Iterable[TopicPartition], reason: str) -> None:
        """Nobody uses these logs any more. Those that are still there wait for another deletion."""
        for tp in tps:
            with suppress(OSError):
                if self._storage.info(log_dir.directory_of(tp)) is None:
                    continue
            self._directories.set_unavailable(log_dir, tp, reason)

    def _delete_names(self, log_dir: LogDir, delays: Mapping[TopicPartition, int]) -> None:
        """``delays`` in ms until the files may be removed."""
        now = self._opener.clock.wall_ms()
        for tp, delay_ms in delays.items():
            if self._storage.info(log_dir.directory_of(tp)) is not None:  # nobody was faster
                path = log_dir.rename_deleted(tp, self._opener.owner.random_id())
                self._directories.remove_later(now + delay_ms, path)
        self._storage.sync_dir(log_dir.path)
        log_dir.offsets.forget_logs(delays.keys())

    # -- configuration -------------------------------------------------------------------------

    @shielded
    def alter(self, topic: str, config: TopicConfig) -> None:
        wanted = self._configs.resolve(config)
        with self.claims.of(topic):
            known = self._known_partitions(topic)
            if all(log.config == wanted for log in known.values()):
                return  # otherwise a change that failed half way may be tried again
            stored = self._configs.next(topic, config)
            self._configs.set(topic, wanted, stored)
            self._apply(known.values())
            self._on_config(wanted)

    @shielded
    def configure(self, log: PartitionLog, config: TopicConfig) -> None:
        """Give a replica the present configuration of its topic, and leave a copy beside it.

        Nothing is written if nothing has changed.
        """
        wanted = self._configs.resolve(config)
        if log.config is not wanted and log.config != wanted:
            log.maintenance.configure(wanted)
            self._on_config(wanted)
        elif self._configs.is_copied(log):
            return
        home = self._directories.home_of(log.topic_partition)
        if home is not None:
            self._guarded(home, self._configs.copy, log, config)

    def settle_configs(self) -> None:
        """At the start, complete a configuration change that a crash left on some partitions."""
        behind = [
            log
            for log in self._directories.logs().values()
            if log.config != self._configs.of(log.topic_partition.topic)
        ]
        for log in behind:
            logger.warning("%s takes over the configuration of its topic", log.name)
        self._apply(behind)

    def _apply(self, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            topic = log.topic_partition.topic
            stored = self._configs.stored(topic)
            home = self._directories.home_of(log.topic_partition)
            if stored is not None and home is not None:
                self._guarded(home, self._configs.file(log.directory).write, stored)
            log.reconfigure(self._configs.of(topic))

    # -- help ----------------------------------------------------------------------------------

    def partitions(self, topic: str) -> dict[int, PartitionLog]:
        return {
            tp.partition: log for tp, log in self._directories.logs().items() if tp.topic == topic
        }

    def _known_partitions(self, topic: str) -> dict[int, PartitionLog]:
        """
        Raises:
            UnknownTopicOrPartitionError: no partition is in a live directory.
            LogUnavailableError: partitions exist, and none could be opened.
        """
        known = self.partitions(topic)
        if not known:
            self._refuse_unavailable(topic)
            raise UnknownTopicOrPartitionError(f"topic {topic!r} is not in a live directory")
        return known

    def _unavailable(self, topic: str) -> dict[int, LogUnavailableError]:
        found = self._directories.unavailable()
        return {tp.partition: why for tp, why in found.items() if tp.topic == topic}

    def _refuse_unavailable(self, topic: str) -> None:
        for why in self._unavailable(topic).values():
            raise LogUnavailableError(why.path, why.reason)

    def _topic_id(self, topic: str) -> uuid.UUID | None:
        ids = (log.topic_id for log in self.partitions(topic).values())
        return next((topic_id for topic_id in ids if topic_id is not None), None)

    def _guarded(
        self, log_dir: LogDir, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._directories.guard(log_dir, "change its logs"):
            return call(*args, **kwargs)


def _raise_first(failed: Mapping[TopicPartition, LogstoreError]) -> None:
    for error in failed.values():
        raise error


def _check_name(topic: str, partition: int) -> None:
    if not isinstance(topic, str):
        raise InvalidTopicError(f"topic name {topic!r} is not a string")
    filenames.validate_topic(topic)
    if topic == filenames.CLUSTER_METADATA:
        raise InvalidTopicError(f"topic {topic!r} is the metadata log of a KRaft broker")
    is_number = isinstance(partition, int) and not isinstance(partition, bool)
    if not is_number or not 0 <= partition <= MAX_PARTITIONS:
        raise InvalidTopicError(f"partition {partition!r} of {topic!r} is not an i32 >= 0")
    filenames.check_dir_name(filenames.partition_dir_name(TopicPartition(topic, partition)))


def _check_count(topic: str, partitions: int) -> None:
    _check_name(topic, 0)
    is_number = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not is_number or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidTopicError(f"topic {topic!r} cannot have {partitions!r} partitions")
    _check_name(topic, partitions - 1)
