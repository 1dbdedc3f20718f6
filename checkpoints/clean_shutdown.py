"""``.kafka_cleanshutdown``: the marker of an orderly stop (rules F-15, F-46 … F-48).

Only its existence decides whether a log directory needs recovery. The content, one JSON object such
as ``{"version":0,"brokerEpoch":25}`` without a newline, tells a controller which registration of
the broker ended. Older releases wrote an empty file. A controller that never saw that registration
may know an earlier one, so earlier epochs are added as ``"earlierEpochs":[4,17]``, oldest first.
Kafka reads that as a marker without an epoch.

Kafka writes the marker in place and does not sync the directory (F-27). Here it is replaced like
any other small file: after a power cut the marker and the content are both there or both are not,
so an orderly stop just before it does not cost a full recovery (S-40a).
"""

from __future__ import annotations

import errno
import json
import posixpath
from collections.abc import Sequence
from itertools import pairwise

from checkpoints.checkpoint_file import MAX_I64, store_file
from checkpoints.errors import CheckpointFailedError
from checkpoints.files import Files, UnusableFileError

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
UNKNOWN_BROKER_EPOCH = -1
_SIZE_MAX = 64 << 10  # the object has 30 bytes; anything longer is unknown


def write(path: str, broker_epoch: int, files: Files, earlier: Sequence[int] = ()) -> None:
    """Write the marker, durably. The caller has flushed and closed every log before (F-48).

    Args:
        earlier: epochs before ``broker_epoch`` since which nothing was lost either, ascending.

    Raises:
        CheckpointFailedError: the disk failed, so the stop counts as unclean.
    """
    more = f',"earlierEpochs":{json.dumps(list(earlier), separators=(",", ":"))}' if earlier else ""
    store_file(files, path, f'{{"version":0,"brokerEpoch":{broker_epoch}{more}}}'.encode("ascii"))


def exists(path: str, files: Files) -> bool:
    """Whether the last stop was clean.

    Raises:
        CheckpointFailedError: the disk failed, and neither answer would be safe.
    """
    return _content(path, files) is not None


def read(path: str, files: Files) -> int | None:
    """The broker epoch in the marker; −1 if it is not known, ``None`` without a marker.

    Raises:
        CheckpointFailedError: the medium refused.
    """
    epochs = read_epochs(path, files)
    if epochs is None:
        return None
    return epochs[-1] if epochs else UNKNOWN_BROKER_EPOCH


def read_epochs(path: str, files: Files) -> tuple[int, ...] | None:
    """The broker epochs in the marker, ascending, with the one that ended last.

    Empty if they are not known, ``None`` without a marker.

    Unknown fields and versions are ignored, and unreadable content is no error (F-46).

    Raises:
        CheckpointFailedError: the medium refused.
    """
    data = _content(path, files)
    return None if data is None else parse_epochs(data)


def parse_epochs(data: bytes) -> tuple[int, ...]:
    """The broker epochs in the content of a marker, as of ``read_epochs``."""
    try:
        content = json.loads(data)
        epochs = (*content.get("earlierEpochs", ()), content["brokerEpoch"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ()
    # bool is an int, but not an epoch
    known = all(type(epoch) is int and 0 <= epoch <= MAX_I64 for epoch in epochs)
    ascend = known and all(one < other for one, other in pairwise(epochs))
    return epochs if ascend else ()


def remove(path: str, files: Files) -> bool:
    """Remove the marker durably, before loading (F-47, S-40b). Returns whether it existed.

    The directory is synced even when there is no marker: an earlier start may have removed it and
    died before its sync, and then a power cut during this load would bring the marker back.

    Raises:
        CheckpointFailedError: the disk failed, so loading must not begin (S-40d).
    """
    try:
        try:
            files.remove(path)
            found = True
        except FileNotFoundError:
            found = False
        files.sync_dir(posixpath.dirname(path) or ".")
    except OSError as error:
        raise CheckpointFailedError(path, "remove", str(error)) from error
    return found


def _content(path: str, files: Files) -> bytes | None:
    try:
        return files.read_file(path, _SIZE_MAX)
    except FileNotFoundError:
        return None
    except UnusableFileError as error:
        if error.errno == errno.EFBIG:
            return b""
        raise CheckpointFailedError(path, "read", str(error)) from error
    except OSError as error:
        raise CheckpointFailedError(path, "read", str(error)) from error
