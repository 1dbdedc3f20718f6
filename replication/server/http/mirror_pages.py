"""Health, metrics and state of a mirror over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from replication.broker.metrics import MetricFamilies
from replication.mirror import observing
from replication.mirror.observing import MirrorView
from replication.server.http.http_server import (
    HttpAnswer,
    HttpRequest,
    HttpService,
    json_answer,
    metrics_answer,
)

PREFIX = "logstore_mirror_"


class MirrorPages(HttpService):
    """``/health``, ``/metrics`` and ``/state``; and as ``HttpService``.

    Args:
        look: asked at each request.
    """

    pages = ("/health", "/metrics", "/state")
    health_is_ours = False  # a look may wait for a disk

    def __init__(self, look: Callable[[], MirrorView], **options: Any) -> None:
        self._look = look
        super().__init__(**options)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        match request.path:
            case "/health":
                return self._health()
            case "/metrics":
                return metrics_answer(lambda: _MirrorCollector(self._look))
            case "/state":
                return json_answer(HTTPStatus.OK, observing.state(self._look()))
            case _:
                answer = {"error": "no such page", "pages": self.pages}
                return json_answer(HTTPStatus.NOT_FOUND, answer)

    def _health(self) -> HttpAnswer:
        """200 while everything that is to be mirrored is, however far behind; else 503."""
        found = observing.problems(self._look())
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return json_answer(status, {"healthy": not found, "problems": found})


class _MirrorCollector:
    def __init__(self, look: Callable[[], MirrorView]) -> None:
        self._look = look

    def describe(self) -> Iterable[Any]:
        """Return nothing, so that a registry reads no values when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Any]:
        families = MetricFamilies()
        for sample in observing.samples(self._look()):
            families.add(PREFIX + sample.name, f"Of the mirror: {sample.name}", sample)
        return families.found.values()


__all__ = ["MirrorPages"]
