"""Topics of a log manager: whole or not at all, with a configuration that lasts."""

from __future__ import annotations

import errno
import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from checkpoints.topic_properties import TopicPropertiesFile
from logstore.common.config import LogConfig
from logstore.common.errors import (
    ConfigError,
    InvalidTopicError,
    LogstoreError,
    StorageFailedError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from logstore.common.forks import Ownership
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.manager.claims import Claims
from logstore.manager.opener import BIRTHS_AT_ONCE
from logstore.testing import FaultyStorage, SimulatedCrash
from tests.support.cases import for_each
from tests.support.until import patience
from tests.support.waiting import race
from tests.unit.manager.test_log_manager import Machine


def kill(machine: Machine, manager: LogManager) -> None:
    machine.storage.crash(mode="all_kept")
    manager.crash()


def die_at_the_sixth(machine: Machine) -> None:
    """The disk ``/b`` takes nothing more once ``t-5`` is to get its name."""
    rename = machine.storage.rename

    def dying(source: str, target: str) -> None:
        if target.endswith("/b/t-5"):
            machine.storage.fail("write", "/b/*", times=10**6)
            machine.storage.fail("rename", "/b/*", times=10**6)
        rename(source, target)

    machine.storage.rename = dying  # type: ignore[method-assign]


class TestCreation:
    def test_all_partitions_share_an_id_and_are_listed(self) -> None:
        with Machine("/a", "/b").start() as manager:
            logs = manager.create_topic("t", 5)
            assert len({log.topic_id for log in logs}) == 1
            assert [log.topic_partition.partition for log in logs] == list(range(5))
            manager.create_topic("s", 1)
            assert manager.topics() == {"s": [0], "t": [0, 1, 2, 3, 4]}

    def test_one_that_fails_leaves_no_partition(self) -> None:
        machine = Machine("/a", "/b")
        manager = machine.start()
        machine.storage.fail("open", "*/t-2/*", error=errno.ENOSPC)
        with pytest.raises(StorageFailedError, match="t-2"):
            manager.create_topic("t", 4)
        assert manager.topics() == {}
        assert len(manager.live_directories) == 1
        assert len(manager.create_topic("t", 4)) == 4
        manager.close()
        with machine.start() as manager:
            assert manager.topics() == {"t": [0, 1, 2, 3]}

    def test_what_a_dead_disk_kept_of_one_goes_when_it_is_back(self) -> None:
        """The topic is elsewhere by then, under another id or under the same."""
        machine = Machine("/a", "/b")
        manager = machine.start()
        die_at_the_sixth(machine)
        with pytest.raises(StorageFailedError):
            manager.create_topic("t", 6)
        assert manager.topics() == {}
        assert manager.live_directories == ["/a"]
        left = {e.name for e in machine.storage.scan_dir("/b") if e.is_dir}
        assert {"t-1", "t-3"} <= left
        manager.create_topic("t", 6)
        machine.storage.heal()
        manager.close()
        for _ in range(2):
            with machine.start() as manager:
                assert manager.topics() == {"t": list(range(6))}
                assert all(log.directory.startswith("/a/") for log in manager.logs.values())

    def test_more_partitions_after_a_disk_died_over_them(self) -> None:
        """The same id: what lies on the disk that was away is empty, and goes."""
        machine = Machine("/a", "/b")
        manager = machine.start()
        manager.create_topic("t", 2)
        die_at_the_sixth(machine)
        with pytest.raises(StorageFailedError):
            manager.create_partitions("t", 6)
        assert manager.topics() == {"t": [0]}  # the other one is on the dead disk
        manager.create_partitions("t", 6)
        machine.storage.heal()
        kill(machine, manager)
        # Partition 1 was made a second time, while its directory was away: that is for a person.
        with pytest.raises(ConfigError, match="t-1"):
            machine.start()
        machine.storage.crash(mode="all_kept")
        machine.storage.remove_tree("/a/t-1")
        with machine.start() as manager:
            assert manager.topics() == {"t": list(range(6))}
            assert manager.get("t", 3).directory == "/a/t-3"

    def test_one_that_is_busy_takes_nothing_offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error of another kind is undone as well, and the directory stays."""
        machine = Machine()
        manager = machine.start()
        opened = PartitionLog.open

        def busy(directory: str, *args: Any, **options: Any) -> PartitionLog:
            if directory.endswith("t-1"):
                raise LogstoreError("too many open files")
            return opened(directory, *args, **options)

        monkeypatch.setattr(PartitionLog, "open", busy)
        with pytest.raises(LogstoreError, match="open files"):
            manager.create_topic("t", 3)
        assert manager.topics() == {}
        assert manager.live_directories == ["/logs"]
        monkeypatch.undo()
        assert len(manager.create_topic("t", 3)) == 3
        manager.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["all_kept", "all_lost"])
    def test_a_crash_at_any_step_leaves_all_or_nothing(
        self, mode: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        step, done, undone = 0, False, 0
        while not done:
            step += 1
            machine = Machine("/a", "/b")
            manager = machine.start()
            machine.storage.crash_after(step)
            try:
                manager.create_topic("t", 3, {"retention.ms": "5"})
                done = True
            except SimulatedCrash:
                pass
            machine.storage.heal()
            machine.storage.crash(mode=mode)
            manager.crash()
            caplog.clear()
            manager = machine.start()
            assert manager.topics() in ({}, {"t": [0, 1, 2]})
            assert done <= bool(manager.topics())
            undone += not manager.topics()
            assert not manager.topics() or "interrupted the creation" not in caplog.text
            for log in manager.logs.values():
                assert log.config.retention_ms == 5
                assert log.topic_id is not None
            if not manager.topics():
                manager.create_topic("t", 3)
            manager.close()
            with machine.start() as manager:
                assert manager.topics() == {"t": [0, 1, 2]}
        assert undone

    def test_the_collector_counts_many_as_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise it looks at all logs again and again while a topic grows. But it is not told of
        more than there are: some of its own looks find what deleted ones leave."""
        calls: list[str] = []
        frozen = 0
        monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
        with Machine().start() as manager:
            for name in ("freeze", "unfreeze"):
                monkeypatch.setattr(gc, name, partial(calls.append, name))

            def told(topic: str, partitions: int = BIRTHS_AT_ONCE) -> bool:
                calls.clear()
                manager.create_topic(topic, partitions)
                assert calls in ([], ["freeze", "unfreeze"])
                return bool(calls)

            assert not told("few", BIRTHS_AT_ONCE - 1)
            assert [told("a"), told("b")] == [True, True]
            for topic in ("few", "a", "b"):
                manager.delete_topic(topic)
            assert [told("c"), told("d"), told("e")] == [False, True, True]
            frozen = 1  # by the caller
            assert not told("f")

    def test_many_are_created_with_few_descriptors(self) -> None:
        files: list[Any] = []
        most = 0

        class Counting(FaultyStorage):
            def open(self, path: str, **options: Any) -> Any:
                nonlocal most
                file = super().open(path, **options)
                if path.endswith("partition.metadata"):
                    files[:] = [file, *(each for each in files if each._open)]
                    most = max(most, len(files))
                return file

        with LogManager(["/d"], storage=Counting(), background=False) as manager:
            assert len(manager.create_topic("t", 200)) == 200
        assert 1 < most <= 50

    def test_nobody_finds_a_partition_before_the_others(self) -> None:
        """Not even who asks for one of them: it waits."""
        machine = Machine()
        manager = machine.start()
        found: list[PartitionLog] = []
        seen: list[bool] = []
        make_dir = machine.storage.make_dir

        def beside(path: str) -> None:
            make_dir(path)
            if "/t-2." in path:
                asker.start()
                asker.join(0.1)
                seen.append(asker.is_alive())
                seen.append(bool(manager.logs))

        asker = threading.Thread(target=lambda: found.append(manager.get_or_create("t", 1)))
        machine.storage.make_dir = beside  # type: ignore[method-assign]
        logs = manager.create_topic("t", 3)
        asker.join(patience())
        assert seen == [True, False]
        assert found == [logs[1]]
        manager.close()

    def test_of_two_that_collide_one_is_created(self) -> None:
        machine = Machine()
        manager = machine.start()
        refused: list[str] = []

        def create(name: str) -> Callable[[], None]:
            def work() -> None:
                try:
                    manager.create_topic(name, 3)
                except TopicExistsError:
                    refused.append(name)

            return work

        race(*(create(name) for name in ("a.b", "a_b", "a.b", "a_b")))
        assert len(refused) == 3
        assert list(manager.topics().values()) == [[0, 1, 2]]
        manager.close()

    @for_each(
        "topic, partition",
        [
            ("x", -1),
            ("x", "0"),
            ("x", 2**31),
            ("x", True),
            ("x", 1.0),
            ("", 0),
            ("a b", 0),
            (b"x", 0),
            (None, 0),
            ("..", 0),
        ],
    )
    def test_what_is_no_partition_is_refused(self, topic: Any, partition: Any) -> None:
        with Machine().start() as manager:
            with pytest.raises(InvalidTopicError):
                manager.get_or_create(topic, partition)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.get(topic, partition)
            assert manager.live_directories == ["/logs"]

    @pytest.mark.parametrize("count", [0, -1, "1", 1.0, True, 2**31])
    def test_what_is_no_number_of_partitions_is_refused(self, count: Any) -> None:
        with Machine().start() as manager, pytest.raises(InvalidTopicError):
            manager.create_topic("t", count)


class TestMorePartitions:
    def test_have_the_id_and_the_configuration_of_the_topic(self) -> None:
        machine = Machine()
        manager = machine.start()
        (first,) = manager.create_topic("t", 1, {"retention.ms": "5"})
        more = manager.create_partitions("t", 3)
        assert [log.topic_partition.partition for log in more] == [1, 2]
        assert {log.topic_id for log in more} == {first.topic_id}
        assert {log.config.retention_ms for log in more} == {5}
        assert manager.get_or_create("t", 3).topic_id == first.topic_id
        kill(machine, manager)
        with machine.start() as manager:
            assert {log.config.retention_ms for log in manager.logs.values()} == {5}
            assert len({log.topic_id for log in manager.logs.values()}) == 1

    def test_cannot_be_fewer(self) -> None:
        with Machine().start() as manager:
            manager.create_topic("t", 3)
            with pytest.raises(InvalidTopicError, match="3 partitions already"):
                manager.create_partitions("t", 2)
            assert manager.create_partitions("t", 3) == []
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.create_partitions("u", 3)


class TestDeletion:
    def test_takes_all_partitions(self) -> None:
        machine = Machine("/a", "/b")
        with machine.start() as manager:
            logs = manager.create_topic("t", 4)
            manager.create_topic("u", 1)
            manager.delete_topic("t")
            assert manager.topics() == {"u": [0]}
            assert all(log.failed for log in logs)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.delete_topic("t")
        with machine.start() as manager:
            assert manager.topics() == {"u": [0]}

    def test_takes_the_configuration_with_it(self) -> None:
        machine = Machine()
        manager = machine.start()
        manager.create_topic("t", 1, {"retention.ms": "5"})
        manager.delete_topic("t")
        assert manager.create_topic("t", 1)[0].config == machine.config
        kill(machine, manager)
        with machine.start() as manager:
            assert manager.get("t", 0).config == machine.config

    @pytest.mark.slow
    def test_a_directory_that_cannot_be_removed_yet_is_removed_later(self) -> None:
        machine = Machine(file_delete_delay_ms=0)
        manager = machine.start()
        manager.create_topic("t", 1)
        manager.delete("t", 0)
        fault = machine.storage.fail("remove", "*-delete/*", times=1)
        assert manager.housekeeper.purge_deleted() == 0
        assert fault.struck
        assert manager.live_directories == ["/logs"]
        machine.clock.advance(60_000)
        assert manager.housekeeper.purge_deleted() == 1
        assert not [e.name for e in machine.storage.scan_dir("/logs") if e.is_dir]
        manager.close()

    def test_no_pending_removal_is_forgotten_beside_another(self) -> None:
        machine = Machine(file_delete_delay_ms=0)
        manager = machine.start()
        stop = threading.Event()

        def purge() -> None:
            while not stop.is_set():
                manager.housekeeper.purge_deleted()

        def change() -> None:
            try:
                for number in range(150):
                    manager.get_or_create("t", number)
                    manager.delete("t", number)
            finally:
                stop.set()

        race(purge, purge, change)
        manager.housekeeper.purge_deleted()
        assert not [e.name for e in machine.storage.scan_dir("/logs") if e.is_dir]
        manager.close()


class TestConfiguration:
    def test_survives_a_restart_whole_or_as_keys(self) -> None:
        """A whole one is kept in every key; keys follow the manager's in all others."""
        machine = Machine()
        manager = machine.start()
        manager.create_topic("whole", 2, LogConfig(retention_ms=7))
        manager.create_topic("keys", 2, {"retention.ms": 7, "preallocate": False})
        kill(machine, manager)
        machine.config = LogConfig(flush_messages=3, segment_index_bytes=1200)
        with machine.start() as manager:
            for partition in (0, 1):
                assert manager.get("whole", partition).config == LogConfig(retention_ms=7)
                config = manager.get("keys", partition).config
                assert (config.retention_ms, config.flush_messages) == (7, 3)
                assert manager.topic_config("keys") == config

    def test_can_be_altered(self) -> None:
        machine = Machine()
        manager = machine.start()
        logs = manager.create_topic("t", 3)
        manager.alter_topic("t", {"retention.ms": "9"})
        assert {log.config.retention_ms for log in logs} == {9}
        manager.get_or_create("t", 1, config=machine.config)
        assert {log.config for log in logs} == {machine.config}
        manager.alter_topic("t", {"retention.ms": "10"})
        kill(machine, manager)
        with machine.start() as manager:
            assert {log.config.retention_ms for log in manager.logs.values()} == {10}
            with pytest.raises(ConfigError):
                manager.alter_topic("t", {"retention.mss": "9"})
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.alter_topic("u", {"retention.ms": "9"})

    def test_that_is_the_same_writes_nothing(self) -> None:
        machine = Machine()
        with machine.start() as manager:
            manager.create_topic("t", 3, {"retention.ms": "9"})
            before = machine.storage.operations
            manager.alter_topic("t", {"retention.ms": "9"})
            manager.get_or_create("t", 1, config={"retention.ms": "9"})
            assert machine.storage.operations == before

    def test_given_at_the_start_comes_before_what_is_stored(self) -> None:
        machine = Machine()
        with machine.start() as manager:
            manager.create_topic("t", 1, {"retention.ms": "9"})
        given = LogConfig(retention_ms=11)
        with machine.start(topic_configs={"t": given}) as manager:
            assert manager.get("t", 0).config == given
        with machine.start() as manager:
            assert manager.get("t", 0).config.retention_ms == 9

    @for_each("step", range(1, 13))
    def test_a_change_cut_short_is_completed(self, step: int) -> None:
        machine = Machine()
        manager = machine.start()
        manager.create_topic("t", 3, {"retention.ms": "9"})
        machine.storage.crash_after(step)
        with pytest.raises(SimulatedCrash):
            manager.alter_topic("t", {"retention.ms": "10"})
        kill(machine, manager)
        for _ in range(2):
            manager = machine.start()
            assert len({log.config.retention_ms for log in manager.logs.values()}) == 1
            files = [
                TopicPropertiesFile(f"/logs/t-{p}/topic.properties", machine.storage).read()
                for p in range(3)
            ]
            assert files[0] == files[1] == files[2]
            kill(machine, manager)

    @pytest.mark.parametrize(
        "content",
        [
            b"retention.ms=4\n",
            b"revision=1\nretention.ms=x\n",
            b"revision=1\nunheard.of=1\n",
            b"\\u00g",
        ],
    )
    def test_that_cannot_be_read_is_not_guessed(self, content: bytes) -> None:
        """The default may be to delete what the topic keeps."""
        machine = Machine("/a", "/b")
        with machine.start() as manager:
            manager.create_topic("t", 2, {"retention.ms": "-1"})
        machine.storage.write_file("/a/t-0/topic.properties", content)
        with machine.start() as manager:
            assert manager.live_directories == ["/a", "/b"]
            assert list(manager.logs) == [("t", 1)]
            assert "/a/t-0/topic.properties" in str(manager.unavailable_logs["t", 0])
        with machine.start(topic_configs={"t": machine.config}) as manager:
            assert sorted(manager.logs) == [("t", 0), ("t", 1)]
            assert manager.unavailable_logs == {}


class TestConfigurationOfReplicas:
    """A controller keeps it; beside each replica lies a copy, for tools that know no controller."""

    def machine(self, *directories: str, **defaults: Any) -> Machine:
        machine = Machine(*directories)
        machine.config = LogConfig(**defaults)
        return machine

    def stored(self, machine: Machine, name: str = "t-0") -> dict[str, str] | None:
        found = TopicPropertiesFile(f"/logs/{name}/topic.properties", machine.storage).read()
        return None if found is None else dict(found.values)

    def test_the_copy_is_there_with_the_log(self) -> None:
        machine = self.machine()
        with machine.start(replicated=True) as manager:
            log = manager.get_or_create("t", 0, config={"retention.ms": "9"})
            assert log.config.retention_ms == 9
            assert self.stored(machine) == {"retention.ms": "9"}
            manager.get_or_create("u", 0, config={})
            assert self.stored(machine, "u-0") == {}

    def test_it_follows_the_orders(self) -> None:
        machine = self.machine()
        with machine.start(replicated=True) as manager:
            log = manager.get_or_create("t", 0, config={})
            for config in ({"retention.ms": "9"}, {"cleanup.policy": "compact"}, {}):
                manager.configure(log, config)
                assert log.config == LogConfig().with_properties(config)
                assert self.stored(machine) == config
        with machine.start() as manager:
            assert manager.get("t", 0).config == LogConfig()

    def test_the_same_order_writes_nothing(self) -> None:
        machine = self.machine()
        for config in ({}, {"retention.ms": "9"}):
            with machine.start(replicated=True) as manager:
                log = manager.get_or_create("t", 0, config=config)
                manager.configure(log, config)
                before = machine.storage.operations
                manager.configure(log, config)
                assert machine.storage.operations == before
            with machine.start(replicated=True) as manager:
                before = machine.storage.operations
                manager.configure(manager.get("t", 0), config)
                assert machine.storage.operations == before

    def test_it_has_what_a_broker_says_for_all_topics(self) -> None:
        """Nothing else in the directory tells it."""
        machine = self.machine(cleanup_policy=("compact",))
        with machine.start(replicated=True) as manager:
            log = manager.get_or_create("t", 0, config={})
            manager.configure(log, {})
        machine.config = LogConfig()
        with machine.start() as manager:
            assert manager.get("t", 0).config.compact

    def test_all_partitions_have_one_revision(self) -> None:
        """Whenever they were made: otherwise a start would take one for older than another."""
        machine = self.machine()
        with machine.start(replicated=True) as manager:
            for number in range(3):
                for retention in range(number + 1):
                    config = {"retention.ms": str(retention)}
                    for p in range(number + 1):
                        log = manager.get_or_create("t", p, config=config)
                        manager.configure(log, config)
            files = [
                TopicPropertiesFile(f"/logs/t-{p}/topic.properties", machine.storage).read()
                for p in range(3)
            ]
            assert files[0] == files[1] == files[2]
            assert files[0] is not None
            assert files[0].values == {"retention.ms": "2"}

    @pytest.mark.parametrize("content", [b"retention.ms=4\n", b"revision=1\nunheard.of=1\n", b""])
    def test_a_damaged_copy_is_written_again(
        self, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The controller knows better, so the replica is opened."""
        machine = self.machine()
        with machine.start(replicated=True) as manager:
            manager.get_or_create("t", 0, config={"retention.ms": "9"})
        machine.storage.write_file("/logs/t-0/topic.properties", content)
        with machine.start(replicated=True) as manager:
            assert "the controller has the configuration" in caplog.text
            manager.configure(manager.get("t", 0), {"retention.ms": "9"})
        assert self.stored(machine) == {"retention.ms": "9"}

    def test_a_second_life_has_its_own(self) -> None:
        machine = self.machine()
        with machine.start(replicated=True) as manager:
            manager.get_or_create("t", 0, config={"retention.ms": "9"})
            manager.delete("t", 0)
            log = manager.get_or_create("t", 0, config={})
            manager.configure(log, {})
            assert log.config.retention_ms == LogConfig().retention_ms
            assert self.stored(machine) == {}

    def test_a_disk_that_refuses_the_copy_is_offline(self) -> None:
        machine = self.machine("/a", "/b")
        with machine.start(replicated=True) as manager:
            log = manager.get_or_create("t", 0, config={})
            machine.storage.fail("write", "*topic.properties*")
            with pytest.raises(StorageFailedError):
                manager.configure(log, {"retention.ms": "9"})
            assert manager.live_directories == ["/b"]
            machine.storage.heal()


class TestClaims:
    def test_partitions_at_once_a_topic_alone(self) -> None:
        claims = Claims(Ownership("a manager"))
        order: list[str] = []

        def whole() -> None:
            with claims.of("t"):
                order.append("whole")

        held, done = threading.Event(), threading.Event()

        def other() -> None:
            with claims.of_all([TopicPartition("t", 1)]):
                held.set()
                assert done.wait(patience())

        first, last = threading.Thread(target=other), threading.Thread(target=whole)
        with claims.of_all([TopicPartition("t", 0)]):
            first.start()
            assert held.wait(patience())  # it does not wait for partition 0
            last.start()
            last.join(0.05)
            assert last.is_alive()
        last.join(0.05)
        assert last.is_alive()  # for partition 1
        assert order == []
        done.set()
        first.join(patience())
        last.join(patience())
        assert order == ["whole"]

    def test_after_the_end_there_is_none(self) -> None:
        claims = Claims(Ownership("a manager"))
        claims.close()
        with pytest.raises(LogstoreError), claims.of("t"):
            pass
