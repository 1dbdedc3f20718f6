"""Kafka's PartitionTest under its names: where logs part, who is fenced, and proposals of an ISR
that were refused or overtaken. The unit tests of ``replication`` say the rest of it."""

from __future__ import annotations

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.state import RecoveryState
from tests.support.cases import for_each
from tests.support.replica_managers import Host, part

ALL = (1, 2, 3)
REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)


class TestPartition:
    def test_last_fetched_offset_validation(self) -> None:
        """testLastFetchedOffsetValidation: which (last epoch, offset) pairs part from the log."""
        host = Host()
        for epoch, counts in ((0, (2,)), (3, (3, 3)), (4, (5,)), (7, (1,)), (9, (3,))):
            host.lead(epoch=epoch)
            for count in counts:
                host.append(count)
        host.lead(epoch=10)
        for last_epoch, offset, parted in (
            (0, 2, None),
            (0, 4, (0, 2)),
            (3, 6, None),
            (3, 9, (3, 8)),
            (4, 14, (4, 13)),
            (5, 13, (4, 13)),
            (6, 13, (4, 13)),
            (7, 14, None),
            (8, 14, (7, 14)),
            (9, 17, None),
            (10, 17, None),
        ):
            answer = host.fetch(part(offset, epoch=10, last_epoch=last_epoch), replica=2).only
            found = (answer.error_code, answer.diverging_epoch)
            assert found == (ErrorCode.NONE, parted), (last_epoch, offset)
        nobody_had = host.fetch(part(17, epoch=10, last_epoch=11), replica=2).only
        assert nobody_had.error_code is ErrorCode.OFFSET_OUT_OF_RANGE

    def test_leader_epoch_validation_on_leader(self) -> None:
        """testLeaderEpochValidationOnLeader: older 74, newer 75, equal or absent accepted (S-7).
        testFollowerStateNotUpdatedIfLogReadFails (128). And what is committed stays so (R-23)."""
        host = Host()
        partition = host.lead(epoch=5, replicas=ALL)
        host.append(3)
        before = partition.progress_of(2)
        host.runtime.advance(100)
        for offset, epoch, code in (
            (3, 4, ErrorCode.FENCED_LEADER_EPOCH),
            (3, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (7, 5, ErrorCode.OFFSET_OUT_OF_RANGE),
        ):
            assert host.fetch(part(offset, epoch=epoch), replica=2).only.error_code is code
            assert (partition.progress_of(2), partition.high_watermark) == (before, 0)
        host.fetch(part(3, epoch=-1), replica=3)
        for offset in (3, 1):
            host.fetch(part(offset, epoch=5), replica=2)
            assert partition.high_watermark == 3

    def test_an_unknown_replica_is_refused(self) -> None:
        """R-101."""
        host = Host()
        host.lead(epoch=1, replicas=ALL)
        for epoch, code in (
            (1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            assert host.fetch(part(0, epoch=epoch), replica=9).only.error_code is code

    def test_should_not_shrink_isr_if_follower_caught_up_to_log_end(self) -> None:
        """testShouldNotShrinkIsrIfFollowerCaughtUpToLogEnd: an idle but complete one stays
        (R-10)."""
        host = Host()
        host.lead(replicas=ALL)
        host.append(2)
        for replica in (2, 3):
            host.replicate(2, replica=replica)
        host.runtime.advance(300_000)
        assert not host.isr_channel.items

    def test_recovering_leader_reports_recovered(self) -> None:
        """R-13, R-58: its next ISR change says that it recovered."""
        host = Host()
        change = host.change(isr=(1,))
        recovering = change.registration._replace(recovery_state=RecoveryState.RECOVERING)
        host.order(change._replace(registration=recovering))
        host.replicate(0)
        assert host.isr_channel.items[0].recovery_state is RecoveryState.RECOVERED


def proposing() -> Host:
    """It leads with 2 in the ISR and has proposed that 3 joins, which counts at once (R-33)."""
    host = Host()
    host.lead(epoch=1, replicas=ALL, isr=(1, 2))
    host.append(2)
    for offset in (0, 2):
        host.replicate(offset, replica=3)
    assert host.partition().isr.maximal == ALL
    return host


class TestProposals:
    @pytest.fixture
    def host(self) -> Host:
        return proposing()

    def test_new_metadata_overtakes_the_answer(self, host: Host) -> None:
        """R-35: the answer to a proposal of an earlier state is dropped."""
        host.lead(epoch=2, replicas=ALL, isr=(1,))
        host.isr_channel.commit()
        assert host.partition().isr.committed == (1,)

    @for_each("code", [ErrorCode.NONE, *REFUSALS])
    @for_each("newer", [{"epoch": 2}, {"epoch": 1, "partition_epoch": 5}])
    def test_a_late_verdict_changes_nothing_of_newer_metadata(
        self, code: ErrorCode, newer: dict[str, int]
    ) -> None:
        """R-35: a refusal would bring back the ISR from before, and its high watermark."""
        host = proposing()
        host.lead(replicas=ALL, isr=(1,), **newer)
        host.isr_channel.answer(code)
        assert host.partition().isr.committed == (1,)
        assert not host.partition().isr.in_flight

    def test_a_refused_one_is_taken_back(self, host: Host) -> None:
        """R-38."""
        for code in REFUSALS:
            assert host.partition().isr.maximal == ALL
            host.isr_channel.answer(code)
            assert host.partition().isr.maximal == (1, 2)
            host.replicate(2, replica=3)  # it proposes again

    @pytest.mark.parametrize(
        "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, None]
    )
    def test_an_undecided_one_stays(self, host: Host, code: ErrorCode | None) -> None:
        """R-22, R-39, R-41, T-F3: it may have been applied, so the larger ISR counts; and a request
        to lead that comes again (no code) changes nothing of that."""
        if code is not None:
            host.isr_channel.answer(code)
            assert not host.isr_channel.items
        else:
            host.lead(epoch=1, replicas=ALL, isr=(1, 2))
        assert host.partition().isr.in_flight
        host.append(2)
        host.replicate(4)
        assert host.partition().high_watermark == 2
