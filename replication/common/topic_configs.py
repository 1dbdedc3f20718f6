"""The checks of a topic's configuration, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError
from replication.common.error_codes import ErrorCode
from replication.common.errors import ResponseError
from replication.common.quota import parse_throttled_replicas

THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Keys that a broker has no default for. They are lists, whose values are texts here."""


def check_topic_config(config: Mapping[str, str]) -> None:
    """Check the keys that a topic sets, together. Every value must be text, because the tree could
    not be read otherwise.

    Raises:
        ResponseError: INVALID_CONFIG.
    """
    try:
        for key, value in config.items():
            if not isinstance(value, str):
                raise ConfigError(f"{key} = {value!r} is not text")
            if key in THROTTLED:
                parse_throttled_replicas(value, 0)
        found = LogConfig.from_properties(config)
        if found.min_compaction_lag_ms > found.max_compaction_lag_ms:
            raise ConfigError("min.compaction.lag.ms is above max.compaction.lag.ms")
    except ConfigError as error:
        raise ResponseError(ErrorCode.INVALID_CONFIG, str(error)) from error
