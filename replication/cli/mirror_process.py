"""The process of ``logstore mirror``: follows until a signal ends it, or once up to the end."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from checkpoints.loggers import package_loggers
from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_ERROR, EXIT_FINDINGS, EXIT_INTERRUPTED, fail
from logstore.common.clock import SystemClock
from logstore.common.errors import LogstoreError

if TYPE_CHECKING:
    from replication.mirror import Mirror, MirrorConfig
    from replication.mirror.continuous_backup import ContinuousBackup
    from replication.mirror.observing import MirrorView
    from replication.security.config import ClientProperties
    from replication.server.serving import HttpListener

LOOK_S = 0.25  # between two looks at the mirror
LINE_S = 30.0  # between two lines about it
_ONCE_MS = 1 << 40  # nothing but progress limits how long one run may take


class MirrorOptions(NamedTuple):
    """The options of the command.

    Attributes:
        make_backup: from a mirror to its backups; None: it makes none.
    """

    source: ClientProperties
    directory: str
    config: MirrorConfig
    once: bool = False
    http: HttpListener | None = None
    make_backup: Callable[[str], ContinuousBackup] | None = None
    as_json: bool = False


class RunEnding(NamedTuple):
    """How a run ended; ``reason`` of an error."""

    code: int = 0
    reason: str = ""


def run(wanted: MirrorOptions) -> int:
    """Returns the exit code."""
    from replication.mirror import Mirror

    signals, screen = _Signals(), Screen()
    with signals.noted(), _warnings(screen), ExitStack() as stack:
        mirror = Mirror(wanted.source, wanted.directory, wanted.config)
        backup = None if wanted.make_backup is None else wanted.make_backup(mirror.directory)
        try:
            mirror.start()
            stack.callback(_close, mirror)
            reporter = stack.enter_context(Reporter(mirror, backup, wanted, screen).shown())
            address = None
            if wanted.http is not None:
                from replication.server.http.mirror_pages import MirrorPages

                host, port, allow_remote = wanted.http
                options: dict[str, Any] = {"host": host, "port": port, "allow_remote": allow_remote}
                pages = stack.enter_context(MirrorPages(reporter.look, **options))
                address = pages.address
            reporter.begin(address)
        except OSError as error:
            fail(printable(f"{error.filename or wanted.directory}: {error.strerror or error}"))
        gc.freeze()  # a full collection would look at all modules, while every fetch waits
        if backup is not None and not wanted.once:
            backup.start()
        patience_ms = wanted.source.config.default_api_timeout_ms
        following = _once if wanted.once else _until_stopped
        ending = following(mirror, reporter, signals, patience_ms)
        reporter.report()
        if (reason := _close(mirror)) and not ending.code:
            ending = RunEnding(EXIT_ERROR, reason)
        if backup is not None:
            if not (wanted.as_json or ending.code):
                screen.line(f"the last backup, to {printable(backup.status.uri)}")
            has_failed = bool(ending.code)
            is_made = backup.finish(
                lambda: has_failed or signals.stop.is_set(), one_more=not has_failed
            )
            if not (is_made or has_failed) and wanted.once:
                ending = RunEnding(EXIT_ERROR, f"no backup: {backup.status.failure}")
        reporter.finish()
    if ending.reason:
        terminal.line(f"error: {printable(ending.reason)}", err=True)
    if not ending.code and wanted.once and reporter.has_findings:
        return EXIT_FINDINGS
    return ending.code or signals.code


def _close(mirror: Mirror) -> str:
    """Why it could not be closed cleanly; "" if it was, or is closed already."""
    try:
        mirror.close()
    except LogstoreError as error:
        return str(error)
    return ""


class Screen:
    """Lines of any thread, above the bar if there is one."""

    def __init__(self) -> None:
        self.bar: Any = None
        self._lock = threading.Lock()

    def line(self, text: str, *, err: bool = False) -> None:
        with self._lock:
            if self.bar is not None:
                self.bar.stop()  # it vanishes
            terminal.line(text, err=err)
            terminal.flush()
            if self.bar is not None:
                self.bar.start()

    @contextmanager
    def with_bar(self) -> Iterator[None]:
        from logstore.terminal import tables

        with tables.progress(*tables.described()) as bar:
            self.bar = bar
            try:
                yield
            finally:
                self.bar = None


class _WarningLines(logging.Handler):
    """What is logged, a line each: a traceback says nothing to who runs the command."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.line(f"warning: {printable(record.getMessage())}", err=True)


@contextmanager
def _warnings(screen: Screen) -> Iterator[None]:
    handler, loggers = _WarningLines(screen), package_loggers()
    for each in loggers:
        each.addHandler(handler)
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)


class _Signals:
    """SIGTERM and Ctrl-C end a run cleanly; a second one at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.code = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else _interrupt)
        if number == signal.SIGINT:
            self.code = EXIT_INTERRUPTED
        self.stop.set()


_interrupt = signal.default_int_handler


def _until_stopped(
    mirror: Mirror, reporter: Reporter, signals: _Signals, patience_ms: int
) -> RunEnding:
    while not signals.stop.wait(LOOK_S):
        reporter.report_if_due()
        if mirror.failure is not None:
            return RunEnding(EXIT_ERROR, str(mirror.failure))
    return RunEnding()


def _once(mirror: Mirror, reporter: Reporter, signals: _Signals, patience_ms: int) -> RunEnding:
    """Follow up to the ends that the source has now. What has not moved for a while will not."""
    answer: list[bool | LogstoreError] = []

    def catch_up() -> None:
        try:
            answer.append(mirror.catch_up(_ONCE_MS))
        except LogstoreError as error:
            answer.append(error)

    thread = threading.Thread(target=catch_up, name="mirror-once", daemon=True)
    thread.start()
    moved, moved_ms = -1, _now_ms()
    try:
        while thread.is_alive():
            thread.join(LOOK_S)
            if signals.stop.is_set():
                return RunEnding()
            reporter.report_if_due()
            if (now := mirror.moved) != moved:
                moved, moved_ms = now, _now_ms()
            elif _now_ms() - moved_ms >= patience_ms:
                return RunEnding(EXIT_ERROR, _why_nothing_moves(reporter.look(), patience_ms))
    finally:
        if thread.is_alive():
            _close(mirror)  # ends the wait
            thread.join()
    found = answer[0] if answer else False
    error = found if isinstance(found, LogstoreError) else mirror.failure
    if error is not None:
        return RunEnding(EXIT_ERROR, str(error))
    if found and mirror.unmatched:
        return RunEnding(EXIT_FINDINGS, _unmatched(mirror))
    return RunEnding() if found else _not_reached(reporter.look())


def _unmatched(mirror: Mirror) -> str:
    return f"no topic of the source matches --topics {' or '.join(mirror.unmatched)}"


def _not_reached(view: MirrorView) -> RunEnding:
    """What the source sends may be refused; that anything else fails is an error."""
    from replication.mirror import PartitionState
    from replication.mirror.observing import problems

    has_failed = view.status.count(PartitionState.FAILED) > 0
    return RunEnding(EXIT_ERROR if has_failed else EXIT_FINDINGS, "; ".join(problems(view)))


def _why_nothing_moves(view: MirrorView, patience_ms: int) -> str:
    from replication.mirror import PartitionState

    status = view.status
    waiting = [
        str(tp)
        for tp, each in status.partitions.items()
        if each.state is not PartitionState.CAUGHT_UP
    ]
    reason = status.unreachable or f"{len(waiting):,} partitions wait: {', '.join(waiting[:5])}"
    return f"nothing came from the source for {patience_ms // 1000} s: {reason}"


def _now_ms() -> int:
    return SystemClock().monotonic_ns() // 1_000_000


class Reporter:
    """Says how far it is: a bar on a terminal, a line now and then elsewhere; and each event."""

    def __init__(
        self,
        mirror: Mirror,
        backup: ContinuousBackup | None,
        wanted: MirrorOptions,
        screen: Screen,
    ) -> None:
        self._mirror, self._backup, self._wanted = mirror, backup, wanted
        self._screen, self._task = screen, None
        self._began_ms = self._before_ms = _now_ms()
        self._before_bytes = 0
        self._next_ms = self._before_ms + int(LINE_S * 1000)
        self._last_event: object = None
        self._unmatched: tuple[str, ...] = ()
        self._last = mirror.status

    @contextmanager
    def shown(self) -> Iterator[Reporter]:
        if self._wanted.as_json or not sys.stderr.isatty():
            yield self
            return
        with self._screen.with_bar():
            self._task = self._screen.bar.add_task("mirror", total=None)
            yield self

    def look(self) -> MirrorView:
        from replication.mirror.observing import MirrorView

        backup = None if self._backup is None else self._backup.status
        return MirrorView(self._mirror.status, dict(self._mirror.report.counts), backup)

    @property
    def has_findings(self) -> bool:
        backup = () if self._backup is None else self._backup.status.findings
        return bool(self._mirror.report.findings or backup)

    def begin(self, address: tuple[str, int] | None) -> None:
        """Say what runs now, and where it is to be watched."""
        from replication.server.serving import url

        page = None if address is None else f"{url(*address)}/"
        cluster_id, directory = self._last.cluster_id, self._mirror.directory
        if self._wanted.as_json:
            found = {"mirroring": cluster_id, "directory": directory}
            self._screen.line(json.dumps(found | ({} if page is None else {"http": page})))
        else:
            self._screen.line(
                f"mirroring: cluster {printable(cluster_id)} into {printable(directory)}"
            )
            if page is not None:
                self._screen.line(f"http:  {page}")

    def report_if_due(self) -> None:
        """Show what is new. Thousands of partitions are looked at only if that is shown now."""
        self.events()
        if self._screen.bar is not None or _now_ms() >= self._next_ms:
            self.report()

    def report(self) -> Any:
        """Look, and show it if it is time; returns the status."""
        self.events()
        if self._mirror.unmatched != self._unmatched:
            self._unmatched = self._mirror.unmatched
            if self._unmatched and not self._wanted.once:  # which ends with it
                self._screen.line(f"warning: {printable(_unmatched(self._mirror))}", err=True)
        self._last = status = self._mirror.status
        now_ms = _now_ms()
        if (bar := self._screen.bar) is not None:
            done = sum(e.log_end_offset - e.log_start_offset for e in status.partitions.values())
            bar.update(
                self._task,
                completed=done,
                total=done + status.lag,
                description=self._text(status, now_ms),
            )
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + int(LINE_S * 1000)
            if bar is None:
                self._line(status, now_ms)
            self._before_ms, self._before_bytes = now_ms, status.bytes
        return status

    def _line(self, status: Any, now_ms: int) -> None:
        if self._wanted.as_json:
            from replication.mirror.observing import summary

            self._screen.line(json.dumps(summary(self.look())))
        else:
            self._screen.line(self._text(status, now_ms))

    def _text(self, status: Any, now_ms: int) -> str:
        from replication.mirror import PartitionState

        elapsed_s = max(now_ms - self._before_ms, 1) / 1000
        rate = (status.bytes - self._before_bytes) / elapsed_s / 1e6
        caught_up = status.count(PartitionState.CAUGHT_UP)
        text = f"{caught_up:,} of {len(status.partitions):,} partitions caught up, "
        text += f"lag {status.lag:,}, {rate:,.1f} MB/s, {status.bytes:,} bytes"
        if status.cuts:
            text += f", {status.cuts:,} cuts"
        if status.unreachable:
            text += f"; source: {status.unreachable}"
        if self._backup is not None and self._backup.status.failure:
            text += f"; backup: {self._backup.status.failure}"
        return printable(text)

    def events(self) -> None:
        """Print those that are new."""
        events = self._mirror.report.events
        if not events or events[-1] is self._last_event:
            return
        known = [at for at, each in enumerate(events) if each is self._last_event]
        for each in events[known[0] + 1 if known else 0 :]:
            if self._wanted.as_json:
                self._screen.line(json.dumps({"event": each.to_json()}, default=str))
                continue
            about = each.topic if each.tp is None else str(each.tp)
            span = f" {each.first_offset}…{each.end_offset - 1}" if each.first_offset >= 0 else ""
            self._screen.line(printable(f"{each.kind.word}: {about}{span}: {each.reason}"))
        self._last_event = events[-1]

    def finish(self) -> None:
        """The last line, of what it was before the mirror was closed."""
        if self._wanted.as_json:
            from replication.mirror.observing import summary

            self._screen.line(json.dumps(summary(self.look()._replace(status=self._last))))
        else:
            self._before_ms, self._before_bytes = self._began_ms, 0  # the rate of it all
            self._screen.line(self._text(self._last, _now_ms()))
