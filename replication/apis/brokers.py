"""What brokers ask each other: a controller its brokers, and brokers their controller (X-9, X-27).

Served on the listener of brokers alone. Each request is one of the house, and its broker answers
it as if it had come within the process.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from checkpoints.loggers import get_logger
from replication.apis.common.broker_requests import FORWARDABLE
from replication.apis.common.handlers import Handlers, ReceivedRequest, Reply
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import Response
from replication.network import CLOSE, Answer, ConnectionInfo, RequestHandler, Send
from replication.protocol import (
    SERVED,
    ApiKey,
    MalformedMessageError,
    UnsupportedVersionError,
    parse_request_header,
)
from replication.protocol import messages as wire
from replication.protocol.principals import decode_principal
from replication.wire import control, controller

logger = get_logger(__name__)


class Halves(NamedTuple):
    """The translation of a request to a value of the house, and of the answer back."""

    request_from: Callable[[Any, int], Any]
    response_to: Callable[[Any, Any, int], Any]


ASKED: Mapping[ApiKey, Halves] = {
    ApiKey.LEADER_AND_ISR: Halves(
        control.leader_and_isr_request_from, control.leader_and_isr_response_to
    ),
    ApiKey.UPDATE_METADATA: Halves(
        control.update_metadata_request_from, control.update_metadata_response_to
    ),
    ApiKey.STOP_REPLICA: Halves(
        control.stop_replica_request_from, control.stop_replica_response_to
    ),
    # To the controller. Who is not it says so.
    ApiKey.ALTER_PARTITION: Halves(
        controller.alter_partition_request_from, controller.alter_partition_response_to
    ),
    ApiKey.CONTROLLED_SHUTDOWN: Halves(
        controller.controlled_shutdown_request_from, controller.controlled_shutdown_response_to
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: Halves(
        controller.allocate_ids_request_from, controller.allocate_ids_response_to
    ),
}


class BrokersApi:
    """
    Args:
        serve: carries out what is inside an Envelope, as a request of a client.
    """

    def __init__(self, broker: Broker, serve: RequestHandler) -> None:
        self._broker = broker
        self._serve = serve

    @property
    def handlers(self) -> Handlers:
        asked = {key: partial(self._ask, halves) for key, halves in ASKED.items()}
        return {**asked, ApiKey.ENVELOPE: self.envelope}

    def _ask(self, halves: Halves, received: ReceivedRequest, message: Any, reply: Reply) -> None:
        request = halves.request_from(message, received.api_version)

        def answer(response: Response | None) -> None:
            if response is None:  # the broker stops, or a newer request has taken its place
                reply(CLOSE)
            else:
                reply(halves.response_to(request, response, received.api_version))

        self._broker.handle(request, answer)

    def envelope(
        self, received: ReceivedRequest, request: wire.EnvelopeRequest, reply: Reply
    ) -> None:
        """Carry out what a client asked of another broker, as the client's (KIP-590, X-70)."""

        def refuse(code: ErrorCode) -> None:
            reply(wire.EnvelopeResponse(error_code=code))

        if not self._broker.controller.active:
            refuse(ErrorCode.NOT_CONTROLLER)
            return
        inside = _inside(received, request)
        if isinstance(inside, ErrorCode):
            logger.info("%s forwards what is not served: %s", received.client_id, inside.name)
            refuse(inside)
            return

        def respond(answer: Answer) -> None:
            if not isinstance(answer, Send):
                reply(answer)
            elif ErrorCode.NOT_CONTROLLER in answer.errors:
                refuse(ErrorCode.NOT_CONTROLLER)
            else:
                parts: Any = answer.buffers
                reply(wire.EnvelopeResponse(b"".join(parts), ErrorCode.NONE))

        self._serve(inside, respond)


def _inside(
    received: ReceivedRequest, request: wire.EnvelopeRequest
) -> ReceivedRequest | ErrorCode:
    """The request in an Envelope, as if it came on the client's own connection.

    That has no rights of a broker, whatever the other broker has.
    """
    try:
        name = decode_principal(request.request_principal or b"")
    except (MalformedMessageError, UnsupportedVersionError):
        return ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    frame = memoryview(request.request_data)
    try:
        host = str(ipaddress.ip_address(request.client_host_address))
        header = parse_request_header(frame)
    except (MalformedMessageError, ValueError):
        return ErrorCode.INVALID_REQUEST
    if header.api_key not in FORWARDABLE:
        return ErrorCode.INVALID_REQUEST
    if header.api_version not in SERVED[header.api_key]:
        return ErrorCode.UNSUPPORTED_VERSION
    connection = received.connection
    listener = connection.listener._replace(is_inter_broker=False)
    return received._replace(
        api_key=header.api_key,
        api_version=header.api_version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        body=frame[header.body_offset :],
        connection=ConnectionInfo(connection.id, host, 0, listener, name),
    )
