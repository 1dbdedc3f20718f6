"""Kafka's ReplicaManagerTest under its names (cases 127 to 129, and what belongs to them)."""

from __future__ import annotations

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.errors import FencedLeaderEpochError
from replication.common.messages import FetchPartitionResponse, FetchRequest, FetchResponse
from tests.support.replica_managers import TP, Host, part


class TestReplicaManager:
    @pytest.mark.parametrize("answered", ["before", "after"])
    def test_fenced_error_caused_by_become_leader(self, answered: str) -> None:
        """testFencedErrorCausedByBecomeLeader (127): the fetcher of a follower is fenced by the
        epoch in which its own broker leads. It ends in order, and the broker leads."""
        host = Host()
        host.follow(leader=2, epoch=0)
        host.runtime.run_until_idle()
        request = host.transport.sent[0].request
        assert isinstance(request, FetchRequest)
        assert request.partitions[0].current_leader_epoch == 0
        fenced = FetchResponse((FetchPartitionResponse(TP, ErrorCode.FENCED_LEADER_EPOCH),))
        if answered == "before":
            host.transport.reply(fenced)
            host.runtime.run_until_idle()
            failed = host.manager.fetchers.failed_partitions
            assert isinstance(failed[TP], FencedLeaderEpochError)
        partition = host.lead(epoch=1)
        if answered == "after":
            host.transport.reply(fenced)
            host.runtime.run_until_idle()
        assert not host.manager.fetchers.failed_partitions
        assert host.manager.fetchers.fetchers == ()
        assert host.manager.fetchers.dead_workers == 0
        assert (partition.is_leader, partition.leader_epoch) == (True, 1)
        assert host.append().base_offset == 0

    def test_follower_state_not_updated_if_log_read_fails(self) -> None:
        """testFollowerStateNotUpdatedIfLogReadFails (128): an offset that does not exist, and an
        epoch that is over."""
        host = Host()
        partition = host.lead(epoch=3, replicas=(1, 2), isr=(1, 2))
        host.append(2)
        answers = host.fetch(part(0, epoch=3), replica=2)
        assert answers.only.error_code is ErrorCode.NONE
        before = partition.follower(2)
        assert before is not None
        host.runtime.advance(100)
        for bad, code in (
            (part(7, epoch=3), ErrorCode.OFFSET_OUT_OF_RANGE),
            (part(2, epoch=2), ErrorCode.FENCED_LEADER_EPOCH),
            (part(2, epoch=4), ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            answers = host.fetch(bad, replica=2)
            assert answers.only.error_code is code
            assert partition.follower(2) == before
            assert partition.high_watermark == 0
        host.fetch(part(2, epoch=3), replica=2)
        assert partition.high_watermark == 2

    def test_delta_to_follower_completes_produce(self) -> None:
        """testDeltaToFollowerCompletesProduce (129): what waits for followers is told to look for
        the new leader."""
        host = Host()
        host.lead(epoch=0)
        answers = host.produce(timeout_ms=60_000)
        assert not answers
        host.follow(leader=2, epoch=1)
        host.runtime.run_until_idle()
        assert answers.only.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answers.only.current_leader == (2, 1)

    def test_delta_to_follower_completes_fetch(self) -> None:
        """testDeltaToFollowerCompletesFetch: as much for a follower's fetch that waits."""
        host = Host()
        host.lead(epoch=0, replicas=(1, 2, 3))
        answers = host.fetch(part(0, epoch=0), replica=3, wait_ms=60_000)
        assert not answers
        host.follow(leader=2, epoch=1, replicas=(1, 2, 3))
        host.runtime.run_until_idle()
        assert answers.only.error_code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        )
