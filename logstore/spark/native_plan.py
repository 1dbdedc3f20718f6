"""What the JVM needs to read a task without Python: ``NativePlan.java`` reads it."""

from __future__ import annotations

import json
from base64 import b64encode
from os import fsencode
from typing import Any

from logstore.directory.splits import FileProof, ReadSettings, Split, segment_uris
from logstore.spark.planning import ReadTask
from logstore.storage.local import LocalStorage
from logstore.storage.uri import open_storage

_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1


def native_plan(
    task: ReadTask, settings: ReadSettings, limit: int, aggregates: tuple[str, ...]
) -> str:
    """JSON; "" if only Python can read the task."""
    paths = [local_paths(split) for split in task.splits]
    if settings.granularity != "record" or settings.drop_malformed or not all(paths):
        return ""
    start, end = settings.start_timestamp, settings.end_timestamp
    plan = {
        "settings": {
            "start": _TIME_MIN if start is None else max(start, _TIME_MIN),
            "end": _TIME_MAX if end is None else min(end, _TIME_MAX),
            "include_control": settings.include_control,
            "check_crcs": settings.check_crcs,
            "read_committed": settings.read_committed,
            "unpacked_max": settings.max_unpacked_bytes or settings.max_batch_bytes,
            "batch_max": settings.max_batch_bytes,
            "limit": limit,
            "aggregates": aggregates,
        },
        "splits": [_split(split, names) for split, names in zip(task.splits, paths, strict=True)],
    }
    text = json.dumps(plan, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a name that is no text
        return ""
    return text


def local_paths(split: Split) -> list[str]:
    """The names under which the segment may be found; empty if it is not on the local disk."""
    opened = [open_storage(uri) for uri in segment_uris(split)]
    is_local = all(isinstance(storage, LocalStorage) for storage, _ in opened)
    return [path for _, path in opened] if is_local else []


def _split(split: Split, paths: list[str]) -> dict[str, Any]:
    return {
        "paths": [_base64(fsencode(path)) for path in paths],
        "uri": split.log_uri,
        "topic": split.topic,
        "partition": split.partition,
        "broker": split.broker,
        "segment": split.segment_base,
        "position": split.position,
        "end_position": split.end_position,
        "from_offset": split.from_offset,
        "end_offset": split.end_offset,
        "open_end": split.open_end,
        "above": split.above,
        "below": split.below,
        "aborted": [number for each in sorted(split.aborted) for number in each],
        "proof": _proof(split.proof),
    }


def _proof(proof: FileProof) -> dict[str, Any]:
    return {
        "file": list(proof.file),
        "may_grow": proof.may_grow,
        "headers": [(position, _base64(header)) for position, header in proof.headers],
    }


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


__all__ = ["native_plan"]
