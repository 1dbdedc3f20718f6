"""Features that a broker here does not have, answered as by a Kafka in which nobody uses them: no
authorizer, no quotas, no stored credentials, features at the levels that they have (W-28).

Tools ask for these at every start and know the answers. An API that is not there at all is an error
to them, or the end of their connection. Each feature is a row of ``ANSWERS``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from replication.apis.common.handlers import Handlers, ReceivedRequest, Reply
from replication.apis.common.refusals import refusal
from replication.common.error_codes import ErrorCode
from replication.protocol import FEATURES, ApiKey
from replication.protocol import messages as wire

Answer = Callable[[int, Any], Any]
"""The response message to a request of a version."""


def _all_refused(key: ApiKey, code: ErrorCode) -> Answer:
    return lambda version, request: refusal(key, version, request, code)


def _no_credentials(
    version: int, request: wire.DescribeUserScramCredentialsRequest
) -> wire.DescribeUserScramCredentialsResponse:
    """Those of ``--users`` are in a file of the operator, and not described."""
    kind = wire.DescribeUserScramCredentialsResponse
    named = Counter(each.name for each in request.users or ())
    results = (
        kind.DescribeUserScramCredentialsResult(
            name,
            ErrorCode.RESOURCE_NOT_FOUND if times == 1 else ErrorCode.DUPLICATE_RESOURCE,
            "no credentials are described" if times == 1 else "the user stands twice",
        )
        for name, times in named.items()
    )
    return kind(error_message=None, results=tuple(results))


def _unchanged_features(
    version: int, request: wire.UpdateFeaturesRequest
) -> wire.UpdateFeaturesResponse:
    """A level that a feature has already is no change. There are no others (W-15)."""
    kind = wire.UpdateFeaturesResponse
    wanted = {each.feature: each.max_version_level for each in request.feature_updates}
    for feature, level in wanted.items():  # of two levels the last one counts
        levels = FEATURES.get(feature)
        if levels is None or level != levels.last:
            reason = f"{feature!r} cannot have level {level}"
            return kind(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=reason)
    results = (
        kind.UpdatableFeatureResult(each.feature, error_message=None)
        for each in request.feature_updates
    )
    return kind(error_message=None, results=tuple(results))


ANSWERS: Mapping[ApiKey, Answer] = {
    **{
        key: _all_refused(key, ErrorCode.SECURITY_DISABLED)
        for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda version, request: wire.DescribeClientQuotasResponse(
        error_message=None
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _no_credentials,
    ApiKey.UPDATE_FEATURES: _unchanged_features,
}


class AbsentFeatures:
    """The handlers of these rows."""

    @property
    def handlers(self) -> Handlers:
        return {key: partial(_answered, answer) for key, answer in ANSWERS.items()}


def _answered(answer: Answer, received: ReceivedRequest, request: Any, reply: Reply) -> None:
    reply(answer(received.api_version, request))
