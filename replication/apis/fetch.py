"""Fetch on the wire (W-40 to W-49). The replica manager has the sessions, waits and limits."""

from __future__ import annotations

from replication.apis.common.addresses import listener_of, node_endpoints
from replication.apis.common.config import ApisConfig
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.refusals import refusal
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchResponse, IsolationLevel, Response
from replication.network import CLOSE
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.wire import fetch as codec


class FetchApi(ApiArea):
    """Answers consumers, and followers that fetch over a socket."""

    def __init__(self, broker: Broker, config: ApisConfig) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._max_bytes = config.fetch_max_bytes

    def fetch(self, received: ReceivedRequest, request: wire.FetchRequest, reply: Reply) -> None:
        """Read records. Answered at once, or when there is enough to read."""
        version = received.api_version
        if not 0 <= request.isolation_level <= IsolationLevel.READ_COMMITTED:  # as Kafka does
            reply(refusal(ApiKey.FETCH, version, request, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        has_tls = received.connection.listener.security_protocol.has_tls
        asked = codec.request_from(
            request,
            version,
            self._metadata.topic_name,
            max_bytes=self._max_bytes,
            takes_slices=not has_tls,  # nothing here has to read what goes from file to socket
        )
        is_committed = asked.isolation_level is IsolationLevel.READ_COMMITTED

        def answer(response: Response | None) -> None:
            if not isinstance(response, FetchResponse):  # the broker stops
                reply(CLOSE)
                return
            reply(self._response(received, response, is_committed))

        self._broker.handle(asked, answer)

    def _response(
        self, received: ReceivedRequest, response: FetchResponse, is_committed: bool
    ) -> wire.FetchResponse:
        message = codec.response_to(response, received.api_version, is_committed=is_committed)
        if received.api_version < codec.FIRST_WITH_ENDPOINTS:
            return message
        leaders = [part.current_leader[0] for part in response.partitions]
        if not any(leader >= 0 for leader in leaders):
            return message
        kind = wire.FetchResponse.NodeEndpoint
        endpoints = node_endpoints(self._metadata, leaders, listener_of(received), kind)
        return message._replace(node_endpoints=endpoints)
