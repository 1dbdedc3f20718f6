"""The requests that a client sends over a wire: how each is written, and its answer read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from replication.common import messages
from replication.common.messages import Response
from replication.protocol import ApiKey
from replication.wire import fetch, metadata, offsets, produce


def _any_version(request: Any) -> int | None:
    return None


class Translation(NamedTuple):
    """
    Attributes:
        request_to: the wire's message in a version.
        response_from: the answer to a request; MalformedMessageError if it does not fit to it.
        latest_version: the latest version that can carry a request; None for any.
        unanswered: what stands for the answer of a request that gets none.
    """

    api_key: ApiKey
    request_to: Callable[[Any, int], Any]
    response_from: Callable[[Any, Any, int], Response]
    latest_version: Callable[[Any], int | None] = _any_version
    unanswered: Callable[[Any], Response | None] = _any_version  # type: ignore[assignment]


TRANSLATIONS: Mapping[type[Any], Translation] = {
    messages.MetadataRequest: Translation(
        ApiKey.METADATA, metadata.request_to, metadata.response_from
    ),
    messages.ProduceRequest: Translation(
        ApiKey.PRODUCE,
        produce.request_to,
        produce.response_from,
        produce.latest_version,
        produce.unanswered,
    ),
    messages.FetchRequest: Translation(
        ApiKey.FETCH, fetch.request_to, fetch.response_from, fetch.latest_version
    ),
    messages.ListOffsetsRequest: Translation(
        ApiKey.LIST_OFFSETS, offsets.request_to, offsets.response_from
    ),
    messages.OffsetForLeaderEpochRequest: Translation(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, offsets.epoch_request_to, offsets.epoch_response_from
    ),
    messages.InitProducerIdRequest: Translation(
        ApiKey.INIT_PRODUCER_ID, produce.id_request_to, produce.id_response_from
    ),
}
