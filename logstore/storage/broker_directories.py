"""The directory of a cluster, as ``logstore serve`` makes it: a log directory for each broker."""

from __future__ import annotations

import os
import re

from checkpoints.meta_properties import META_PROPERTIES
from logstore.storage.base import Storage

_NAME = re.compile(r"broker-(0|[1-9][0-9]{0,9})", re.ASCII)  # as it is made: one for each id


def broker_directories(storage: Storage, path: str) -> list[str]:
    """Names of the brokers' log directories in the directory ``path``, by broker; empty if it is no
    directory of a cluster.

    ``broker-0`` could be a partition. A log directory has its file ``meta.properties``, which no
    partition has.
    """
    if storage.info(os.path.join(path, META_PROPERTIES)) is not None:
        return []  # a log directory itself
    found = {}
    for entry in storage.scan_dir(path):
        match = _NAME.fullmatch(entry.name) if entry.is_dir else None
        if match and storage.info(os.path.join(path, entry.name, META_PROPERTIES)) is not None:
            found[int(match[1])] = entry.name
    return [found[broker] for broker in sorted(found)]
