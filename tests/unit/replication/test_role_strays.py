"""A full list of roles sets aside what has no place any more (R-179); a shortage delays a role; no
answer waits for a change of roles."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Collection
from typing import Any, Literal

import pytest

from checkpoints.offset_checkpoint import HIGH_WATERMARK, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.manager import LogManager
from logstore.testing import SimulatedCrash
from logstore.testing.faulty import FOREVER
from replication.common.error_codes import ErrorCode
from replication.common.errors import InconsistentClusterIdError
from replication.common.messages import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    StopReplicaPartition,
    StopReplicaRequest,
)
from replication.common.state import TopicAssignment
from replication.decisions.strays import Belonging, belonging
from tests.support.builders import batch
from tests.support.replica_managers import EPOCH, TOPIC_ID, TP, Host
from tests.support.replication import ManualRuntime
from tests.support.until import patience

OTHER = TopicPartition("orders", 1)
NEW_ID = uuid.UUID(int=77)


def directories(host: Host, suffix: str = "") -> list[str]:
    names = [entry.name for entry in host.storage.scan_dir("/logs") if entry.is_dir]
    return sorted(name for name in names if name.endswith(suffix))


def full(
    host: Host, *tps: TopicPartition, deleted: Collection[uuid.UUID] = (), **change: Any
) -> ErrorCode:
    """The controller names all replicas here; other partitions of the topic are on broker 2."""
    changes = [host.change(tp, epoch=5, **change) for tp in tps]
    places = {number: (1, 2) if (TP.topic, number) in tps else (2,) for number in range(2)}
    topics = {TP.topic: TopicAssignment(change.get("topic_id") or TOPIC_ID, places)}
    response = host.order(*changes, is_full=True, topics=topics, deleted=deleted)
    assert all(code is ErrorCode.NONE for _, code in response.partitions)
    return response.error_code


class TestStrays:
    def test_what_is_not_named_is_set_aside(self, caplog: pytest.LogCaptureFixture) -> None:
        host = Host()
        host.lead()
        host.lead(OTHER, replicas=(1,))
        host.append(3)
        host.manager.log_manager.housekeeper.checkpoint_high_watermarks()
        assert full(host, OTHER) is ErrorCode.NONE
        assert list(host.manager.partitions) == [OTHER]
        assert list(host.log_manager.logs) == [OTHER]
        (stray,) = directories(host, "-stray")
        assert stray.startswith("orders-0.")
        assert len(stray) == len("orders-0.") + 32 + len("-stray")
        assert "orders-0 has no place here any more" in caplog.text
        kept = OffsetCheckpoint(f"/logs/{HIGH_WATERMARK}", host.storage).read()
        assert set(kept) == {OTHER}

    def test_its_records_are_kept(self) -> None:
        host = Host()
        host.lead()
        host.append(3)
        size = sum(e.size for e in host.storage.scan_dir("/logs/orders-0"))
        full(host)
        (stray,) = directories(host, "-stray")
        host.runtime.advance(300_000)
        assert directories(host, "-stray") == [stray]  # nobody removes it
        log = next(e for e in host.storage.scan_dir(f"/logs/{stray}") if e.name.endswith(".log"))
        assert 0 < log.size <= size

    def test_the_same_name_under_another_id_is_another_topic(self) -> None:
        host = Host()
        host.lead()
        host.append(3)
        assert full(host, TP, topic_id=NEW_ID, deleted=[TOPIC_ID]) is ErrorCode.NONE
        assert len(directories(host, "-stray")) == 1
        log = host.partition().local_log()
        assert (log.topic_id, log.log_end_offset) == (NEW_ID, 0)
        assert host.partition().is_leader

    def test_what_the_tree_does_not_know_stays(self) -> None:
        """It is not served, and everything else goes its way."""
        host = Host()
        host.lead()
        host.lead(OTHER, topic_id=NEW_ID)
        host.append(3)
        topics = {"elsewhere": TopicAssignment(uuid.UUID(int=5), {0: (1, 2)})}
        for _ in range(2):
            host.order(is_full=True, topics=topics, deleted=[NEW_ID])
        assert not host.manager.partitions
        assert len(directories(host, "-stray")) == 1
        assert host.log_manager.get(*TP).log_end_offset == 3

    def test_one_line_says_so_once(self, caplog: pytest.LogCaptureFixture) -> None:
        host = Host()
        host.lead()
        host.lead(OTHER, topic_id=NEW_ID)
        topics = {"known": TopicAssignment(NEW_ID, {1: (1, 2)})}
        for _ in range(2):
            host.order(is_full=True, topics=topics)
        said = [line for line in caplog.messages if "knows nothing of the topics of 1 logs" in line]
        assert len(said) == 1

    @pytest.mark.parametrize("name", ["orders", "elsewhere"])
    def test_never_all_logs_at_once(self, name: str) -> None:
        """Topics of the same names are no proof that these are gone: the broker stops."""
        host = Host()
        host.lead()
        host.append(3)
        topics = {name: TopicAssignment(NEW_ID, {0: (1, 2)})}
        response = host.order(is_full=True, topics=topics)
        assert response.error_code is ErrorCode.INCONSISTENT_CLUSTER_ID
        (error,) = host.refusals
        assert isinstance(error, InconsistentClusterIdError)
        assert "none of its 1 logs" in str(error)
        assert directories(host) == ["orders-0"]
        assert host.partition().local_log().log_end_offset == 3

    def test_a_single_log_whose_topic_was_deleted_goes(self) -> None:
        host = Host()
        host.lead()
        host.order(is_full=True, deleted=[TOPIC_ID])
        assert not host.refusals
        assert len(directories(host, "-stray")) == 1

    def test_it_comes_back_with_its_topic(self) -> None:
        host = Host()
        host.lead()
        host.append(3)
        full(host)
        host.log_manager.close()
        again = Host(storage=host.storage)
        follower = again.follow(epoch=6)
        assert follower.local_log().log_end_offset == 3
        assert not directories(again, "-stray")

    def test_it_is_scanned_as_after_a_crash(self) -> None:
        """Nobody knows who had it in his hands."""
        host = Host()
        host.lead()
        host.append(3)
        full(host)
        host.log_manager.close()
        (stray,) = directories(host, "-stray")
        path = f"/logs/{stray}/{0:020d}.log"
        data = host.storage.read_file(path)
        host.storage.write_file(path, data[:-1] + bytes([data[-1] ^ 1]))
        again = Host(storage=host.storage)
        assert again.follow(epoch=6).local_log().recovery_report.bytes_cut == len(data)

    @pytest.mark.parametrize("operation", ["open", "sync_dir", "write", "rename", "list"])
    @pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
    def test_a_return_that_fails_is_tried_again(self, operation: str, error: int) -> None:
        """No empty log takes its place, and its records are not set aside for good."""
        for after in range(50):
            host = Host()
            host.lead()
            host.append(3)
            full(host)
            fault = host.storage.fail(operation, f"/logs/{TP}*", error=error, after=after)
            response = host.order(host.change(epoch=6, leader=2))
            if not fault.struck:
                break
            if dict(response.partitions)[TP] is ErrorCode.KAFKA_STORAGE_ERROR:
                host.log_manager.crash()
                host = Host(storage=host.storage)
            assert host.follow(epoch=6).local_log().log_end_offset == 3, after
            assert not directories(host, "-stray")
            host.log_manager.crash()
        assert not fault.struck

    def test_it_does_not_come_back_for_another_topic(self) -> None:
        host = Host()
        host.lead()
        host.append(3)
        full(host, deleted=[TOPIC_ID])
        assert host.lead(topic_id=NEW_ID).local_log().log_end_offset == 0
        assert len(directories(host, "-stray")) == 1

    @pytest.mark.parametrize("named", [TOPIC_ID, None], ids=["its id", "no id"])
    def test_what_is_named_stays(self, named: uuid.UUID | None) -> None:
        host = Host()
        host.lead()
        host.append(3)
        full(host, TP, topic_id=named)
        assert host.partition().local_log().log_end_offset == 3
        assert directories(host) == ["orders-0"]

    def test_a_part_of_the_roles_sets_nothing_aside(self) -> None:
        host = Host()
        host.lead()
        host.lead(OTHER)
        host.order(host.change(OTHER, epoch=5))
        assert set(host.manager.partitions) == {TP, OTHER}

    @pytest.mark.parametrize("stale", ["controller", "broker", "overtaken"])
    def test_a_refused_list_sets_nothing_aside(self, stale: str) -> None:
        host = Host()
        host.controller_epoch = 4
        host.order(host.change(), sequence=9)
        if stale == "controller":
            host.controller_epoch = 3
        epoch = {"broker_epoch": 1} if stale == "broker" else {}
        sequence = 8 if stale == "overtaken" else 10
        response = host.order(is_full=True, sequence=sequence, **epoch)
        assert response.error_code is not ErrorCode.NONE
        assert TP in host.manager.partitions
        assert not directories(host, "-stray")

    def test_a_replica_that_follows_is_not_fetched_any_more(self) -> None:
        host = Host()
        host.follow()
        host.runtime.run_until_idle()
        full(host)
        assert not host.manager.fetchers.fetchers
        assert not host.manager.partitions

    def test_who_waits_there_is_answered(self) -> None:
        host = Host()
        host.lead()
        answers = host.produce(timeout_ms=10_000)
        assert not answers
        full(host)
        (response,) = answers
        assert isinstance(response, ProduceResponse)
        assert response.partitions[0].error_code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )

    def test_a_disk_that_refuses_ends_its_directory_and_not_the_roles(self) -> None:
        host = Host(directories=("/logs", "/more"))
        host.lead()
        host.lead(OTHER)
        homes = {tp: host.log_manager.get(*tp).directory.rsplit("/", 1)[0] for tp in (TP, OTHER)}
        assert len(set(homes.values())) == 2
        host.storage.fail("rename", f"{homes[TP]}/orders-0")
        full(host, OTHER)
        assert list(host.log_manager.offline_directories) == [homes[TP]]
        assert host.partition(OTHER).is_leader

    @pytest.mark.parametrize("mode", ["all_kept", "all_lost"])
    def test_a_crash_leaves_a_log_or_a_stray(self, mode: str) -> None:
        """At every operation of the disk; and the next full list finishes it."""
        for step in range(1, 200):
            host = Host()
            host.lead()
            host.append(3)
            host.partition().local_log().flush()
            host.log_manager.housekeeper.checkpoint_recovery_points()
            host.storage.crash_after(step)
            try:
                full(host)
                break
            except SimulatedCrash:
                pass
            host.storage.crash(mode=mode)  # type: ignore[arg-type]
            host.log_manager.crash()
            again = Host(storage=host.storage)
            logs = list(again.log_manager.logs)
            assert len(logs) + len(directories(again, "-stray")) == 1
            for tp in logs:
                log = again.log_manager.get(*tp)
                assert (log.log_end_offset, log.recovery_point) == (3, 3)
            full(again, TP, topic_id=NEW_ID, deleted=[TOPIC_ID])
            assert again.partition().local_log().log_end_offset == 0
            again.log_manager.crash()
        assert step > 4

    def test_it_stays_aside_after_a_power_loss(self) -> None:
        """Also where no checkpoint names it, whose writing would sync the directory."""
        host = Host()
        host.lead()
        host.partition().local_log().flush()
        full(host)
        host.storage.crash(mode="all_lost")
        host.log_manager.crash()
        again = Host(storage=host.storage)
        assert not again.log_manager.logs
        assert len(directories(again, "-stray")) == 1

    def test_a_log_that_could_not_be_opened_goes_too(self) -> None:
        host = Host()
        host.lead()
        host.log_manager.close()
        host.storage.make_dir("/logs/orders-1")
        host.storage.make_dir("/logs/orders-1/partition.metadata")  # a directory in its place
        host = Host(storage=host.storage)
        if OTHER not in host.log_manager.unavailable_logs:
            pytest.skip("another kind of damage")
        full(host, TP)
        assert not host.log_manager.unavailable_logs
        assert len(directories(host, "-stray")) == 1


class TestStops:
    TPS = tuple(TopicPartition("orders", number) for number in range(4))

    def host(self) -> Host:
        host = Host()
        host.order(*(host.change(tp) for tp in self.TPS))
        return host

    def stop(self, host: Host) -> set[ErrorCode]:
        stops = (StopReplicaPartition(tp, -2, delete=True, topic_id=TOPIC_ID) for tp in self.TPS)
        response = host.control(StopReplicaRequest(3, 1, EPOCH + 1, tuple(stops)))
        return {code for _, code in response.partitions}

    @pytest.mark.parametrize("mode", ["all_kept", "all_lost"])
    def test_one_shortage_does_not_keep_the_space_of_all(self, mode: Literal["all_lost"]) -> None:
        """What has got its last name is removed, but not before that name is durable."""
        host = self.host()
        host.storage.fail("sync_dir", "/logs", error=errno.EMFILE, times=FOREVER)
        assert self.stop(host) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert self.stop(host) == {ErrorCode.NONE}
        host.runtime.advance(61_000)
        assert len(directories(host, "-delete")) == 4
        host.storage.heal()
        host.runtime.advance(121_000)
        assert not directories(host)
        host.storage.crash(mode=mode)
        assert directories(host) == directories(host, "-delete")  # a start removes them

    def test_a_log_that_somebody_removed_does_not_hold_up_the_others(self) -> None:
        host = self.host()
        host.storage.remove_tree("/logs/orders-2")
        assert self.stop(host) == {ErrorCode.NONE}
        host.runtime.advance(120_000)
        assert not directories(host)


class TestShortage:
    def test_a_role_that_met_a_shortage_is_asked_for_again(self) -> None:
        """Its disk is well: it is not offline, and takes the role the next time."""
        host = Host()
        host.storage.fail("make_dir", f"/logs/{TP}.*", error=errno.EMFILE, times=3)
        response = host.order(host.change(), host.change(OTHER))
        assert dict(response.partitions) == {
            TP: ErrorCode.REPLICA_NOT_AVAILABLE,
            OTHER: ErrorCode.NONE,
        }
        assert TP not in host.manager.partitions
        assert len(host.log_manager.live_directories) == 1
        assert host.order(host.change()).partitions == ((TP, ErrorCode.NONE),)
        assert host.partition().is_leader

    @pytest.mark.parametrize("operation", ["open", "rename", "sync", "sync_dir", "write", "list"])
    def test_tries_that_fail_leave_nothing_behind(self, operation: str) -> None:
        """The controller asks again and again, until there are descriptors."""
        host = Host()
        host.storage.fail(operation, f"/logs/{TP}*", error=errno.EMFILE, times=FOREVER)
        for _ in range(4):
            response = host.order(host.change(), host.change(OTHER))
            assert dict(response.partitions)[TP] is ErrorCode.REPLICA_NOT_AVAILABLE
            host.runtime.advance(40_000)
        host.storage.heal()
        host.runtime.advance(120_000)
        assert directories(host) == [str(OTHER)]
        assert host.lead().local_log().topic_id == TOPIC_ID

    def test_the_former_role_stays_meanwhile(self) -> None:
        host = Host()
        host.lead()
        host.append()  # the epoch of a log without records needs no file
        host.follow(epoch=1)
        host.storage.fail("open", "*leader-epoch-checkpoint*", error=errno.EMFILE, times=2)
        response = host.order(host.change(epoch=2))
        assert response.partitions == ((TP, ErrorCode.REPLICA_NOT_AVAILABLE),)
        assert not host.partition().offline
        assert not host.partition().is_leader
        assert host.order(host.change(epoch=2)).partitions == ((TP, ErrorCode.NONE),)
        assert host.partition().is_leader


def test_nobody_is_answered_while_roles_change() -> None:
    """The one who is answered may at once ask for something that needs the change to be over."""
    host = Host()
    host.lead()
    answered: list[bool] = []

    def respond(response: ProduceResponse) -> None:
        other = threading.Thread(target=host.tell, daemon=True)
        other.start()
        other.join(patience())
        answered.append(not other.is_alive())

    request = ProduceRequest(-1, 10_000, (ProducePartition(TP, batch()),))
    host.manager.writes.produce(request, respond)
    assert not answered
    host.order(host.change(partition_epoch=1, replicas=(1,)))  # alone it commits what it has
    assert answered == [True]


def test_the_name_is_free_for_a_new_log() -> None:
    host = Host(runtime=ManualRuntime())
    host.lead()
    host.append(3)
    manager: LogManager = host.log_manager
    manager.set_aside("orders", [0, 7])
    manager.set_aside("orders", [0])
    manager.set_aside("unheard-of", [0])
    assert not manager.logs
    log = manager.get_or_create("orders", 0, topic_id=NEW_ID)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (0, 0, 0)


@pytest.mark.parametrize(
    ("topic_id", "name", "known_id", "place"),
    [
        (TOPIC_ID, "orders", TOPIC_ID, Belonging.HERE),
        (None, "orders", TOPIC_ID, Belonging.HERE),
        (TOPIC_ID, "renamed", TOPIC_ID, Belonging.HERE),
        (TOPIC_ID, "orders", NEW_ID, Belonging.REPLACED),
        (NEW_ID, "orders", TOPIC_ID, Belonging.REPLACED),
        (TOPIC_ID, "others", NEW_ID, Belonging.UNKNOWN),
        (None, "others", NEW_ID, Belonging.UNKNOWN),
    ],
)
def test_what_the_tree_knows(
    topic_id: uuid.UUID | None, name: str, known_id: uuid.UUID, place: Belonging
) -> None:
    topics = {name: TopicAssignment(known_id, {0: (1, 2)})}
    assert belonging(TP, topic_id, 1, topics, ()) is place
    moved = Belonging.MOVED if place is Belonging.HERE else place
    assert belonging(TP, topic_id, 3, topics, ()) is moved
    if moved is not Belonging.MOVED and topic_id is not None:
        assert belonging(TP, topic_id, 1, topics, [topic_id]) is Belonging.DELETED
