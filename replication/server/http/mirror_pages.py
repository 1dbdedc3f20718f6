"""Health, metrics and state of a mirror over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from checkpoints.printable import printable
from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from replication.mirror import observing
from replication.mirror.observing import MirrorView
from replication.server.http.http_server import HttpAnswer, HttpRequest, HttpService, json_answer

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
                return self._metrics()
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

    def _metrics(self) -> HttpAnswer:
        try:
            library: Any = load("prometheus_client", Extra.METRICS, "metrics over HTTP")
        except ConfigError as error:
            return json_answer(HTTPStatus.NOT_IMPLEMENTED, {"error": str(error)})
        registry = library.CollectorRegistry()
        registry.register(_MirrorCollector(self._look))
        body: bytes = library.generate_latest(registry)
        return HttpAnswer(HTTPStatus.OK, str(library.CONTENT_TYPE_LATEST), body)


class _MirrorCollector:
    def __init__(self, look: Callable[[], MirrorView]) -> None:
        self._look = look

    def describe(self) -> Iterable[Any]:
        """Return nothing, so that a registry reads no values when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Any]:
        core: Any = load("prometheus_client.core", Extra.METRICS, "metrics over HTTP")
        families: dict[str, Any] = {}
        for name, value, labels, is_counter in observing.samples(self._look()):
            family = families.get(name)
            if family is None:
                kind = core.CounterMetricFamily if is_counter else core.GaugeMetricFamily
                family = families[name] = kind(PREFIX + name, f"Of the mirror: {name}")
            suffix = "_total" if is_counter else ""
            given = {key: printable(text) for key, text in labels}
            family.add_sample(PREFIX + name + suffix, given, float(value))
        return families.values()


__all__ = ["MirrorPages"]
