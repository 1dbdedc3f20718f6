"""ApiVersions: what this server can be asked (W-10 to W-15)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from replication.apis.common.handlers import ReceivedRequest, Reply
from replication.common.error_codes import ErrorCode
from replication.protocol import ADVERTISED, FEATURES, ApiKey, VersionRange
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
        served = sorted(key for key in set(keys) if key in ADVERTISED)
        self._plain = tuple(map(_version, served))
        self._sasl = tuple(map(_version, sorted({*served, *_SASL})))

    def api_versions(
        self, received: ReceivedRequest, request: wire.ApiVersionsRequest, reply: Reply
    ) -> None:
        """Served at any time, also before a login."""
        connection = received.connection
        if received.api_version >= 3:
            names = request.client_software_name, request.client_software_version
            if not all(map(_SOFTWARE.fullmatch, names)):
                reply(wire.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
                return
            connection.client_software_name, connection.client_software_version = names
        has_sasl = connection.listener.security_protocol.has_sasl
        keys = self._sasl if has_sasl else self._plain
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


def _version(key: ApiKey) -> wire.ApiVersionsResponse.ApiVersion:
    versions = ADVERTISED[key]
    return wire.ApiVersionsResponse.ApiVersion(key, versions.first, versions.last)
