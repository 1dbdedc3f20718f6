"""The follower's side of a mirrored partition: as of a broker, but it destroys nothing that nobody
has said to be gone, and what it does to a log is in the report before.
"""

from __future__ import annotations

from contextlib import closing
from itertools import count

from logstore.common.config import MAX_LONG
from logstore.common.errors import CorruptDataError, InvalidRecordError, RecordRejectedError
from logstore.common.types import Buffer
from logstore.directory.windows import BatchTable
from logstore.kernels import AppendInfo
from logstore.log import PartitionLog
from logstore.storage.base import Storage
from replication.common.error_codes import ErrorCode
from replication.common.state import UNKNOWN_EPOCH
from replication.mirror.belief import check_watermarks, committed
from replication.mirror.errors import SourceContradictsError
from replication.mirror.report import MirrorEventKind, MirrorReport
from replication.partition import FollowerSide, Partition

COPIED_AT_ONCE = 4 << 20  # bytes
USELESS_MAX = 10


class MirrorFollower(FollowerSide):
    """
    Attributes:
        source_high_watermark: as the source said last; −1 before it did.
        source_log_start: the same of the start of its log.
        met_epoch: of the leader that has all of our log. What a later one has is not known yet.
        received: bytes that were appended.
        cuts: how often records went.
        refusal: what the leader answered instead of records, if it did so last, and since when.
        gap_end: up to where the source has nothing, since it deleted all; what is here was kept.
    """

    def __init__(
        self,
        partition: Partition,
        report: MirrorReport,
        storage: Storage,
        *,
        keep_deleted: bool,
    ) -> None:
        super().__init__(partition)
        self.source_high_watermark = self.source_log_start = -1
        self.met_epoch = UNKNOWN_EPOCH
        self.received = self.cuts = 0
        self.gap_end = -1
        self.refusal: tuple[ErrorCode, int] | None = None
        self._useless = 0  # answers in a row that have nothing committed
        self._report, self._storage = report, storage
        self._keep_deleted = keep_deleted

    def append(
        self,
        records: Buffer,
        leader_epoch: int,
        leader_log_start: int = -1,
        leader_high_watermark: int = MAX_LONG,
    ) -> AppendInfo:
        """As of a broker, but only what the source has committed (X-178)."""
        self._check_watermarks(leader_high_watermark, leader_log_start)
        try:
            believed = committed(records, leader_high_watermark)
            # A log that has records never begins again because of a batch that does not fit.
            is_empty = self._replica.log_start_offset == self._replica.log_end_offset
            known_start = leader_log_start if is_empty else -1
            info = super().append(believed, leader_epoch, known_start)
            if not info.size:
                self._check_useless(len(records), len(believed), leader_high_watermark)
        except RecordRejectedError as error:
            self._refuse(error)
            raise
        if info.size:
            self._useless = 0
            self.received += info.size
            self._report.over(self._tp)
        return info

    def _check_useless(self, size: int, believed: int, high_watermark: int) -> None:
        """
        Raises:
            InvalidRecordError: the answer has no whole batch; or once more none that is committed,
                which happens to an honest source, but not again and again.
        """
        if believed:
            raise InvalidRecordError(f"the source sends {size} bytes, and no whole batch")
        self._useless += 1
        if self._useless > USELESS_MAX:
            raise InvalidRecordError(
                f"the source sends batches that are not below its high watermark {high_watermark}"
            )

    def follow(self, leader_high_watermark: int, leader_log_start: int, leader_epoch: int) -> bool:
        """As of a broker. But the high watermark does not fall, as all records here were committed:
        that of a new leader may be behind for a moment. And a log start above our end is not taken
        over: if it is true, the source will refuse our offset."""
        self._check_watermarks(leader_high_watermark, leader_log_start)
        with self._replica.lock:
            log = self._following(leader_epoch)
            before, is_first = log.core.snapshot, self.source_high_watermark < 0
            self.refusal = None
            self.source_high_watermark = leader_high_watermark
            self.source_log_start = leader_log_start
            end = before.log_end_offset
            if min(leader_high_watermark, end) > before.high_watermark:
                log.replica.maybe_increment_high_watermark(min(leader_high_watermark, end))
            start = min(leader_log_start, log.high_watermark)
            if not self._keep_deleted and start > before.log_start_offset:
                log.replica.maybe_increment_log_start_offset(start)
            if end >= leader_high_watermark:
                self._report.over(self._tp)
            after = log.core.snapshot
            return (
                is_first
                or after.high_watermark != before.high_watermark
                or after.log_start_offset != before.log_start_offset
                or after.log_end_offset != before.log_end_offset
            )

    def _check_watermarks(self, high_watermark: int, log_start: int) -> None:
        try:
            check_watermarks(high_watermark, log_start)
        except RecordRejectedError as error:
            self._refuse(error)
            raise

    def _refuse(self, error: RecordRejectedError) -> None:
        end = self._replica.log_end_offset
        self._report.add_once(MirrorEventKind.REFUSED, self._tp, str(error), end, end)

    def refused(self, code: ErrorCode, now_ms: int) -> None:
        """Note that the leader refuses. A quick change of codes is one refusal."""
        before = self.refusal
        self.refusal = (code, now_ms if before is None else before[1])

    def logs_meet(self, leader_epoch: int) -> None:
        self.met_epoch = leader_epoch

    # -- what makes a log shorter --------------------------------------------------------------

    def epoch_not_known(self, epoch: int) -> None:
        """A leader knows its own epoch, which is no earlier: so it has another history.

        Raises:
            SourceContradictsError: always. All here was committed, so nothing goes, and nothing is
                appended that nobody has compared.
        """
        end = self._replica.log_end_offset
        raise self._contradiction(
            f"the source knows nothing of leader epoch {epoch}, in which it gave the records up to "
            f"{end}",
            end,
            end,
        )

    def truncate_to(self, offset: int, leader_epoch: int) -> None:
        """Cut records that the source does not have any more, as it has elected a leader without
        them. They stay beside the log.

        Raises:
            SourceContradictsError: the source has elected nobody since it gave these records.
        """
        with self._replica.lock:
            log = self._following(leader_epoch)
            end = log.log_end_offset
            if offset < end:
                latest = log.epochs.latest
                if latest >= leader_epoch:
                    raise self._contradiction(
                        f"the source has no records from {offset} on in leader epoch "
                        f"{leader_epoch}, in which it gave those up to {end}",
                        offset,
                        end,
                    )
                self._keep_cut(log, offset, end, leader_epoch)
                self.gap_end = -1
            super().truncate_to(offset, leader_epoch)

    def begin_at_start(self, cut: int, leader_start: int, leader_epoch: int) -> None:
        """Cut what the source has otherwise. That its log starts behind that, one answer is no
        proof of: the next fetch asks for what is not there, and its log ends tell.

        If it starts right there nothing more is asked. Then what is left of ours goes, too, and
        stays beside the log: a transaction that is open in it may have ended where nobody sees it.

        Raises:
            SourceContradictsError: as ``truncate_to``.
        """
        with self._replica.lock:
            self.truncate_to(cut, leader_epoch)
            log = self._following(leader_epoch)
            start, end = log.log_start_offset, log.log_end_offset
            if start < end == leader_start and not self._keep_deleted:
                self._keep_cut(log, start, end, leader_epoch)
                super().truncate_fully_and_start_at(end, leader_epoch)

    def take_end(self, offset: int, leader_epoch: int) -> None:
        end = self._replica.log_end_offset
        raise self._contradiction(
            f"the source refuses offset {end}, and its records end at {offset}", offset, end
        )

    def take_start(self, offset: int, leader_end: int, leader_epoch: int) -> None:
        """The source deleted records before they were mirrored. Those that are here were deleted
        there, too, so they go; to keep them leaves a gap.

        Raises:
            SourceContradictsError: its log starts above its end.
        """
        if offset > leader_end:
            end = self._replica.log_end_offset
            raise self._contradiction(
                f"the source's log starts at {offset}, and ends at {leader_end}", end, end
            )
        with self._replica.lock:
            log = self._following(leader_epoch)
            start, end = log.log_start_offset, log.log_end_offset
            # Of an empty log that begins nothing is lost but what the source has shown.
            lost = self._report.lost_up_to(self._tp, end) if end else self.source_log_start
            if 0 <= lost < offset:
                self._report.add(
                    MirrorEventKind.LOST,
                    self._tp,
                    "the source deleted them before they were mirrored",
                    lost,
                    offset,
                    kept_from=start if self._keep_deleted else offset,
                )
            if start == end or not self._keep_deleted:
                super().truncate_fully_and_start_at(offset, leader_epoch)
            else:
                self.gap_end, self.source_log_start = offset, offset
                self.source_high_watermark = max(self.source_high_watermark, leader_end)

    def _contradiction(self, reason: str, first: int, end: int) -> SourceContradictsError:
        self._report.add_once(MirrorEventKind.CONTRADICTION, self._tp, reason, first, end)
        return SourceContradictsError(f"{self._tp}: {reason}")

    def _keep_cut(self, log: PartitionLog, offset: int, end: int, leader_epoch: int) -> None:
        """Copy what is about to be cut, then report it."""
        path = self._copy(log, offset)
        self.cuts += 1
        self._report.add(
            MirrorEventKind.CUT,
            self._tp,
            "the source elected a leader without them",
            offset,
            end,
            leader_epoch=leader_epoch,
            epoch_here=log.epochs.latest,
            kept=path,
        )

    def _copy(self, log: PartitionLog, offset: int) -> str:
        """Write the batches from ``offset`` on to a file beside the log; the name of the file."""
        names = (f"{offset:020d}.mirror{number or ''}.cut" for number in count())
        name = next(n for n in names if self._storage.info(f"{log.directory}/{n}") is None)
        unfinished = f"{log.directory}/{name}.tmp"
        position, end = 0, log.log_end_offset
        with closing(self._storage.open(unfinished, create=True)) as file:
            file.truncate(0)
            while offset < end:
                data = self._replica.call_storage(log.read, offset, COPIED_AT_ONCE).data
                whole = BatchTable(data)
                if not whole.rows:
                    raise CorruptDataError(log.directory, 0, "cannot be copied before a cut")
                file.write_at(position, memoryview(data)[: whole.end])
                position += whole.end
                offset = whole.cells("last_offset")[-1] + 1
            file.sync()
        self._storage.rename(unfinished, f"{log.directory}/{name}")
        self._storage.sync_dir(log.directory)
        return name


__all__ = ["MirrorFollower"]
