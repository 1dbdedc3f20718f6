"""The list of segments that a replacement replaces, written before its first file is renamed.

All batches at the end of a replaced segment may be gone, so the offsets in a replacement do not
show how far it reaches. Without the list a start could leave old segments after it, with a deleted
key, or with data of an aborted transaction whose marker is gone. Kafka has no such list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any

from logstore.common.errors import CorruptDataError
from logstore.kernels import crc32c
from logstore.storage.base import Storage

REPLACED_SEGMENTS = "replaced-segments"
_SIZE_MAX = 64 << 20  # bytes: a million segments, and more than any log has
_VERSION = 0
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class ReplacedList:
    """The replacement at base offset ``base`` replaces the segments with the bases ``replaced``.

    Its ``.log`` has ``size`` bytes with the checksum ``crc32c``.
    """

    base: int
    size: int
    crc32c: int
    replaced: tuple[int, ...]

    def write(self, storage: Storage, directory: str) -> None:
        """Write the list. File and name are durable on return.

        Raises:
            OSError: the list could not be written; no replacement may be renamed.
        """
        text = json.dumps({"version": _VERSION, **asdict(self)})
        storage.write_file(os.path.join(directory, REPLACED_SEGMENTS), text.encode())
        storage.sync_dir(directory)

    def vouches_for(self, storage: Storage, path: str) -> bool:
        """Whether the ``.log`` at ``path`` is the replacement that the list was written for."""
        with closing(storage.open(path, writable=False)) as file:
            if file.size() != self.size:
                return False
            value = 0
            for at in range(0, self.size, _CHUNK):
                value = crc32c(file.read_at(at, _CHUNK), value)
            return value == self.crc32c


NONE_REPLACED = ReplacedList(-1, 0, 0, ())


def read_replaced_list(storage: Storage, directory: str) -> ReplacedList | None:
    """The list of a replacement that was under way; None if there is none, or a kill came between
    the making of the file and its content.

    Raises:
        CorruptDataError: the list is incomplete, so no segment was replaced yet.
    """
    path = os.path.join(directory, REPLACED_SEGMENTS)
    try:
        data = storage.read_file(path, _SIZE_MAX)
        return _parsed(json.loads(data)) if data else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptDataError(path, 0, f"not a list of replaced segments: {error}") from None


def _parsed(content: dict[str, Any]) -> ReplacedList:
    numbers = [content[name] for name in ("version", "base", "size", "crc32c")]
    replaced: Sequence[Any] = content["replaced"]
    if not all(type(n) is int and n >= 0 for n in (*numbers, *replaced)):
        raise ValueError("a number is missing")
    if numbers[0] != _VERSION:
        raise ValueError(f"version {numbers[0]} is not known")
    _, base, size, crc = numbers
    return ReplacedList(base, size, crc, tuple(replaced))


def remove_replaced_list(storage: Storage, directory: str) -> None:
    with suppress(FileNotFoundError):
        storage.remove(os.path.join(directory, REPLACED_SEGMENTS))
