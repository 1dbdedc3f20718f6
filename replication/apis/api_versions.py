"""ApiVersions: what this server can be asked (W-10 to W-15)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from replication.apis.common.broker_requests import LAST_OF_CLIENTS
from replication.apis.common.handlers import ReceivedRequest, Reply
from replication.common.error_codes import ErrorCode
from replication.protocol import (
    ADVERTISED,
    ADVERTISED_TO_BROKERS,
    FEATURES,
    ApiKey,
    VersionRange,
)
from replication.protocol import messages as wire

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SASL = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class ApiVersionsApi:
    """Names what is in the table of handlers, and nothing else. Clients fall back from an API that
    is not named, and break on one that is named and not served.

    Args:
        keys: what is served.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        served = {*keys}
        self._lists = {
            (has_sasl, is_inter_broker): tuple(
                _version(key, is_inter_broker)
                for key in sorted(served.union(_SASL if has_sasl else ()) & table.keys())
            )
            for has_sasl in (False, True)
            for is_inter_broker, table in ((False, ADVERTISED), (True, ADVERTISED_TO_BROKERS))
        }

    def api_versions(
        self, received: ReceivedRequest, request: wire.ApiVersionsRequest, reply: Reply
    ) -> None:
        """Served at any time, also before a login."""
        if received.api_version >= 3:
            names = request.client_software_name, request.client_software_version
            if not all(map(_SOFTWARE.fullmatch, names)):
                reply(wire.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
                return
        listener = received.connection.listener
        keys = self._lists[listener.security_protocol.has_sasl, listener.is_inter_broker]
        reply(_with_features(wire.ApiVersionsResponse(api_keys=keys), received.api_version))

    @staticmethod
    def unsupported(served: VersionRange) -> wire.ApiVersionsResponse:
        """The answer to a version that is not served, in version 0, which every client reads."""
        own = wire.ApiVersionsResponse.ApiVersion(ApiKey.API_VERSIONS, served.first, served.last)
        return wire.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(own,))


FIRST_WITH_FEATURES = 3
FIRST_WITH_LEVEL_0 = 4  # clients of earlier versions refuse a feature that may be absent


def _with_features(response: wire.ApiVersionsResponse, version: int) -> wire.ApiVersionsResponse:
    """Add the features that the cluster has finalized (W-15)."""
    if version < FIRST_WITH_FEATURES:
        return response
    kind = wire.ApiVersionsResponse
    return response._replace(
        supported_features=tuple(
            kind.SupportedFeatureKey(name, *levels)
            for name, levels in FEATURES.items()
            if levels.first > 0 or version >= FIRST_WITH_LEVEL_0
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            kind.FinalizedFeatureKey(name, levels.last, levels.last)
            for name, levels in FEATURES.items()
        ),
    )


def _version(key: ApiKey, is_inter_broker: bool) -> wire.ApiVersionsResponse.ApiVersion:
    """Clients are not offered what they would be refused (W-212)."""
    first, last = ADVERTISED_TO_BROKERS[key]
    if not is_inter_broker:
        last = LAST_OF_CLIENTS.get(key, last)
    return wire.ApiVersionsResponse.ApiVersion(key, first, last)
