"""Looks at the source's topics now and then, and soon when a leader is not where it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from checkpoints.loggers import get_logger
from logstore.common.errors import LogstoreError
from replication.common.retrying import Backoff
from replication.common.runtime import Cancellable, Runtime, Task
from replication.mirror.config import MirrorConfig
from replication.mirror.source import ConfigValues, MirrorSource, SourceView

logger = get_logger(__name__)

CALM_MS = 10_000  # without trouble, after which the first try is quick again
SOON = Backoff(20, 1000)  # pauses before the source is asked because of trouble

OnView = Callable[[SourceView, bool], None]


class Watch:
    """Asks, and has one answer at a time applied, on an actor of its own.

    Args:
        apply: gets a view, and whether what failed may be tried again. It may wait for the disk.
        on_unreachable: no broker answered.
        on_configs: gets configurations of topics, and why those of others are not known.
        is_chosen: whether a topic is mirrored.
    Attributes:
        rounds: how many views were applied.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: MirrorSource,
        config: MirrorConfig,
        is_chosen: Callable[[str], bool],
        *,
        apply: OnView,
        on_unreachable: Callable[[], None],
        on_configs: Callable[[Mapping[str, ConfigValues], Mapping[str, str]], None],
    ) -> None:
        self.rounds = 0
        self._runtime, self._source, self._config = runtime, source, config
        self._is_chosen = is_chosen
        self._apply, self._on_unreachable, self._on_configs = apply, on_unreachable, on_configs
        self._actor = runtime.actor("mirror-watch")
        self._known: set[str] = set()  # topics whose configuration is known, or asked for
        self._configs_ms: int | None = None
        self._asking = self._again = self._retry = False  # on the actor
        self._timer: Cancellable | None = None
        self._soon: Cancellable | None = None
        self._troubles = self._trouble_ms = 0
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        self._timer = self._runtime.every(
            self._config.metadata_interval_ms, partial(self.refresh, retry=True)
        )
        self.refresh()

    def close(self) -> None:
        """Apply nothing any more; wait for what is being applied."""
        with self._lock:
            self._closed = True
            for timer in (self._timer, self._soon):
                if timer is not None:
                    timer.cancel()
        self._actor.close(wait=True)

    def post(self, task: Task) -> None:
        """Run a task between two views."""
        self._actor.post(task)

    def refresh(self, *, retry: bool = False) -> None:
        """Ask now; after an answer that is under way, once more."""
        self._actor.post(partial(self._refresh, retry))

    def hurry(self) -> None:
        """Ask soon, since a leader is not where it was. The pauses grow if that repeats."""
        with self._lock:
            if self._soon is not None or self._closed:
                return
            now_ms = self._runtime.now_ms()
            if now_ms - self._trouble_ms > CALM_MS:
                self._troubles = 0
            self._troubles, self._trouble_ms = self._troubles + 1, now_ms
            pause_ms = SOON.delay_ms(self._troubles, self._runtime.random)
            self._soon = self._runtime.call_later(pause_ms, self._hurried)

    def _hurried(self) -> None:
        with self._lock:
            self._soon = None
        self.refresh()

    # -- on the actor --------------------------------------------------------------------------

    def _refresh(self, retry: bool) -> None:
        self._retry = self._retry or retry
        if self._asking:
            self._again = True
            return
        self._asking = True
        self._source.ask_view(lambda view: self._actor.post(partial(self._viewed, view)))

    def _viewed(self, view: SourceView | None) -> None:
        if view is None:
            self._finish(self._on_unreachable)
            return
        chosen = [topic for topic in view.topics if self._is_chosen(topic)]
        now_ms = self._runtime.now_ms()
        is_due = (
            self._configs_ms is None
            or now_ms - self._configs_ms >= self._config.configs_interval_ms
        )
        asked = chosen if is_due else [topic for topic in chosen if topic not in self._known]
        if is_due:
            self._configs_ms = now_ms
        self._known = set(chosen)
        if not asked:
            self._finish(partial(self._apply_view, view))
            return
        # New logs get the configuration of their topic from the start.
        waiting = set(asked)

        def on_configs(found: Mapping[str, ConfigValues], refused: Mapping[str, str]) -> None:
            self._actor.post(partial(self._configured, view, waiting, found, refused))

        self._source.ask_configs(asked, on_configs)

    def _configured(
        self,
        view: SourceView,
        waiting: set[str],
        found: Mapping[str, ConfigValues],
        refused: Mapping[str, str],
    ) -> None:
        waiting -= {*found, *refused}
        self._known -= {*refused}  # asked for again with the next view
        self._guarded(partial(self._on_configs, found, refused))
        if not waiting:
            self._finish(partial(self._apply_view, view))

    def _apply_view(self, view: SourceView) -> None:
        retry, self._retry = self._retry, False
        self._apply(view, retry)
        self.rounds += 1

    def _finish(self, end: Task) -> None:
        self._guarded(end)
        self._asking = False
        if self._again:
            self._again = False
            self._refresh(False)

    def _guarded(self, task: Task) -> None:
        """A failure is not the end: the next look at the source tries it again."""
        try:
            task()
        except (LogstoreError, OSError) as error:
            logger.error("what the source says could not be followed: %s", error)
        except Exception:
            logger.exception("what the source says could not be followed")


__all__ = ["Watch"]
