"""An object store that is asked again, and never waited for without a bound.

A request to a store cannot be cancelled. So each runs on a thread of its own, which is given up
when it takes longer than the bytes explain, and counted: no copy hangs for ever on a store that
does not answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any, TypeVar, cast

from checkpoints.loggers import get_logger
from logstore.common.types import Buffer
from logstore.tiers import (
    ObjectStore,
    StoredObject,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
)

T = TypeVar("T")

Pause = Callable[[float], object]
"""Waits for so many seconds."""

_CHUNK = 1000  # keys: what a store lists in one answer
_CHUNKS_AHEAD = 4
_STOP_LOOKS_S = 0.5
_TOLD_FROM = 2  # a single failure is a store's daily life

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store is waited for.

    ``bound_s`` and one second for each ``slowest`` bytes is the longest that a request may take.
    A request that failed is repeated after ``first_pause_s``, doubled up to ``last_pause_s``, at
    most ``tries`` times in all. After ``hung_max`` requests without an answer nothing is asked any
    more.
    """

    bound_s: float = 300.0
    slowest: int = 1 << 18  # several requests share a line
    first_pause_s: float = 0.5
    last_pause_s: float = 30.0
    tries: int = 8
    hung_max: int = 8

    def bound(self, size: int) -> float:
        return self.bound_s + size / self.slowest

    def pause(self, tries: int) -> float:
        """The pause after so many tries."""
        return float(min(self.first_pause_s * 2 ** (tries - 1), self.last_pause_s))


PATIENT = Patience()


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class PatientStore:
    """The calls of an `ObjectStore` with repeats and bounds. Safe for several threads.

    ``requests`` counts what was asked, by kind, and ``retries`` how often again; ``hung`` how many
    requests never got an answer.
    """

    def __init__(
        self, store: ObjectStore, patience: Patience = PATIENT, pause: Pause = wait
    ) -> None:
        self.store, self.patience = store, patience
        self._pause = pause
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.retries = self.hung = 0
        self._told = 0  # the most tries of one request that a warning told of: few lines in all

    @property
    def uri(self) -> str:
        return self.store.uri

    def put(
        self,
        key: str,
        parts: Callable[[], Iterable[Buffer]],
        size: int,
        *,
        only_if_absent: bool = False,
    ) -> None:
        """Put an object. ``parts`` gives its bytes again for each try.

        Raises:
            ObjectExistsError: also if a try that reported a failure has put it.
            StoreError: as the store's.
        """

        def call() -> None:
            self.store.put(key, parts(), size, only_if_absent=only_if_absent)

        self._repeated("put", key, size, call)

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        """A range of an object."""
        return self._repeated("get", key, max(size, 0), lambda: self.store.get(key, start, size))

    def delete(self, keys: Collection[str]) -> None:
        if keys:
            self._repeated("delete", next(iter(keys)), 0, lambda: self.store.delete(keys))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """What the store lists, sorted by key; after a failure it goes on where that came."""
        last, tries = "", 0
        while True:
            try:
                for found in self._listed(prefix):
                    if found.key > last:
                        last, tries = found.key, 0
                        yield found
                return
            except (StoreThrottledError, StoreUnavailableError) as error:
                tries += 1
                self._before_repeat(error, tries)

    # -- repeats -------------------------------------------------------------------------------

    def _repeated(self, kind: str, key: str, size: int, call: Callable[[], T]) -> T:
        tries = 0
        while True:
            with self._lock:
                self.requests[kind] += 1
            try:
                return self._bounded(key, size, call)
            except (StoreThrottledError, StoreUnavailableError) as error:
                tries += 1
                self._before_repeat(error, tries)

    def _before_repeat(self, error: StoreError, tries: int) -> None:
        if tries >= self.patience.tries or self.hung >= self.patience.hung_max:
            raise error
        pause = self.patience.pause(tries)
        with self._lock:
            self.retries += 1
            is_news, self._told = tries > self._told, max(tries, self._told)
        if is_news and tries >= _TOLD_FROM:
            logger.warning(
                "%s; try %d of %d in %.0f s", error, tries + 1, self.patience.tries, pause
            )
        self._pause(pause)

    def _bounded(self, key: str, size: int, call: Callable[[], T]) -> T:
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((call(), None))
            except BaseException as error:
                answers.put((None, error))

        self._start(key, run)
        value, error = self._answer(answers, key, size)
        if error is not None:
            raise error
        return cast(T, value)

    def _start(self, key: str, run: Callable[[], None]) -> None:
        if self.hung >= self.patience.hung_max:
            raise self._unavailable(key, f"{self.hung} requests got no answer: the store hangs")
        threading.Thread(target=run, name="logstore-store", daemon=True).start()

    def _answer(
        self,
        answers: SimpleQueue[Any] | Queue[Any],
        key: str,
        size: int,
    ) -> Any:
        bound = self.patience.bound(size)
        try:
            return answers.get(timeout=bound)
        except Empty:
            with self._lock:
                self.hung += 1
            raise self._unavailable(key, f"no answer within {bound:,.0f} s, given up") from None

    def _unavailable(self, key: str, reason: str) -> StoreUnavailableError:
        return StoreUnavailableError(key, reason, may_have_effect=True, store=self.uri)

    def _listed(self, prefix: str) -> Iterator[StoredObject]:
        """One listing, read ahead by some answers of the store."""
        chunks: Queue[tuple[list[StoredObject], bool, BaseException | None]] = Queue(_CHUNKS_AHEAD)
        stopped = threading.Event()

        def offer(chunk: list[StoredObject], last: bool, error: BaseException | None) -> bool:
            while not stopped.is_set():
                try:
                    chunks.put((chunk, last, error), timeout=_STOP_LOOKS_S)
                except Full:
                    continue
                return True
            return False

        def run() -> None:
            chunk: list[StoredObject] = []
            try:
                for found in self.store.list(prefix):
                    chunk.append(found)
                    if len(chunk) == _CHUNK:
                        if not offer(chunk, False, None):
                            return
                        chunk = []
            except BaseException as error:
                offer(chunk, True, error)
            else:
                offer(chunk, True, None)

        with self._lock:
            self.requests["list"] += 1
        self._start(prefix, run)
        try:
            while True:
                chunk, last, error = self._answer(chunks, prefix, 0)
                yield from chunk
                if error is not None:
                    raise error
                if last:
                    return
        finally:
            stopped.set()


__all__ = ["PATIENT", "Patience", "PatientStore", "Pause", "wait"]
