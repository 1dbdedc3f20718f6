"""The verification on this machine: one plan, whose segments a few threads check.

It only reads: nothing is created, locked, cut or changed. So a directory may be checked while a
broker uses it. What the broker writes during the check is either not seen or noted as information.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

from logstore.storage.base import Storage
from logstore.storage.paths import Paths, each_path
from logstore.verify.common.report import VerifyReport
from logstore.verify.plan import VerifyPlan
from logstore.verify.replicas.replicas import Failure, ReplicaSet, run_job
from logstore.verify.segment.segment_check import SegmentResult, VerifyOptions

Progress = Callable[[int, int], None]
"""Called with the bytes checked so far and the bytes of all known segments, from any thread."""

_OUTSTANDING_MAX = 16
"""For how many partitions small files are read ahead of segments: few, because they age."""

_Outcome = SegmentResult | Failure


def verify(
    paths: Paths,
    options: VerifyOptions | None = None,
    *,
    storage: Storage | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check log directories, partition directories or single files of them.

    Paths may be URIs (``open_storage``), unless ``storage`` holds all of them. If several paths
    hold the same partition, these replicas are compared. Damage is a finding, never an exception.
    What cannot be read at all is listed in ``unusable`` of the report, and the rest is checked.

    Raises:
        ValueError: no path was given.
    """
    every = each_path(paths)
    if not every:
        raise ValueError("no path to verify")
    plan = VerifyPlan(options or VerifyOptions(), counted=progress is not None)
    for path in every:
        plan.add(path, storage)
    threads = plan.options.threads or min(8, os.cpu_count() or 1)
    guard, read = Lock(), 0

    def advance(count: int) -> None:
        nonlocal read
        with guard:  # so that what all threads have read is reported in order
            read += count
            if progress is not None:
                progress(read, max(plan.bytes, read))

    pending: deque[tuple[ReplicaSet, list[Future[_Outcome]]]] = deque()

    def drain(left: int) -> None:
        while len(pending) > left:
            replicas, futures = pending.popleft()
            replicas.finish([future.result() for future in futures], plan.report)

    with _pool(threads) as pool:
        for replicas in plan.replica_sets():
            replicas.prepare(plan.report)
            futures = [
                pool.submit(run_job, check.storage, job, plan.options, advance)
                for check in replicas.checks
                for job in check.all_jobs
            ]
            pending.append((replicas, futures))
            drain(_OUTSTANDING_MAX)
        drain(0)
    return plan.report


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that only read, so an interrupted caller does not wait for them."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="logstore-verify")
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


__all__ = ["Progress", "verify"]
