"""Why ``verify`` may call a changed byte clean: a reason for each kind of file and field.

An explanation looks at the label of a mutation and, where not every value is harmless, at the
directory before and after.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from tests.fuzz.mutations import Mutation
from tests.fuzz.mutators import SEGMENT_FILE, batch_places
from tests.fuzz.tree import Entry, Tree

_SMALL = "(recovery-point|log-start|replication)-offset-checkpoint"
_OFFSETS = f"({_SMALL}|leader-epoch-checkpoint)"
_EDITS = r" (?!removed|renamed|fifo|socket|directory|link|huge|meanwhile).*"
_IN_PLACE = r"(\.\w+| (?!added|removed|renamed|fifo|socket|directory|link|huge|meanwhile).*)"
_DIRECTORY = re.compile(r"(?!\.\.?-)[a-zA-Z0-9._-]{1,249}-\+?[0-9]{1,10}", re.ASCII)


class Explanation(NamedTuple):
    label: str
    reason: str
    applies: Callable[[Mutation, Tree, Tree], bool] = lambda m, before, after: True


# -- texts -----------------------------------------------------------------------------------------


def _lines(data: bytes) -> list[bytes]:
    return data.replace(b"\r\n", b"\n").split(b"\n")


def _same_lines(m: Mutation, before: Tree, after: Tree) -> bool:
    return _lines(before[m.path].data) == _lines(after[m.path].data)


def properties(data: bytes) -> dict[bytes, bytes]:
    """Key and value of each line that is no comment; the last one of a key counts."""
    pairs = [line.strip().partition(b"=") for line in re.split(rb"[\r\n]+", data)]
    return {k.strip(): v.strip() for k, _, v in pairs if k.strip() and k[:1] not in b"#!"}


def _same_properties(m: Mutation, before: Tree, after: Tree) -> bool:
    return properties(before[m.path].data) == properties(after[m.path].data)


def _legal_identity(m: Mutation, before: Tree, after: Tree) -> bool:
    """Version 0 may leave out whatever it likes; version 1 needs both ids."""
    found = properties(after[m.path].data)
    version = found.get(b"version", b"0")
    numbers = [found[name] for name in (b"node.id", b"broker.id") if name in found]
    if not all(re.fullmatch(rb"[+-]?\d{1,10}", number) for number in numbers):
        return False
    return version == b"0" or (version == b"1" and bool(numbers) and b"cluster.id" in found)


def _offsets_inside(m: Mutation, before: Tree, after: Tree) -> bool:
    """Each line is as before, or names the same partition with an offset that its log has."""
    for old, new in zip(_lines(before[m.path].data), _lines(after[m.path].data), strict=False):
        if old != new:
            one, other = (re.fullmatch(rb"(.*) 0*(\d+) (\d{1,19})", line) for line in (old, new))
            if one is None or other is None or one.groups()[:2] != other.groups()[:2]:
                return False
            if int(other[3]) > _log_end(after, os.fsdecode(b"%b-%b" % other.groups()[:2])):
                return False
    return len(_lines(before[m.path].data)) == len(_lines(after[m.path].data))


def _alone_with_properties(m: Mutation, before: Tree, after: Tree) -> bool:
    """No other partition of the topic has properties."""
    topic = m.path.rpartition("-")[0]
    pattern = re.compile(re.escape(topic) + r"-\d+/topic\.properties")
    return not any(pattern.fullmatch(path) for path in after if path != m.path)


# -- segments --------------------------------------------------------------------------------------


def _logs(tree: Tree, directory: str) -> list[str]:
    pattern = re.compile(re.escape(directory) + r"/\d{20}\.log(\.swap)?")
    return sorted(path for path in tree if pattern.fullmatch(path))


def _log_beside(m: Mutation, tree: Tree) -> Entry | None:
    """That of the segment of an index; a roll waits under another name."""
    path = re.sub(r"\.\w+$", ".log", m.path)
    return tree.get(path) or tree.get(f"{path}.swap")


def _headers(data: bytes) -> list[tuple[int, int, int]]:
    """Position, base and last offset of each batch of magic 2."""
    return [
        (
            at,
            base := int.from_bytes(data[at : at + 8], "big"),
            base + int.from_bytes(data[at + 23 : at + 27], "big", signed=True),
        )
        for at, _ in batch_places(data)
        if data[at + 16] == 2
    ]


def _log_end(tree: Tree, directory: str) -> int:
    ends = [last + 1 for path in _logs(tree, directory) for _, _, last in _headers(tree[path].data)]
    return max(ends, default=-1)


def _batch_ascends(m: Mutation, before: Tree, after: Tree) -> bool:
    """The offsets of the batch neither overlap those behind it nor fall short of its records."""
    headers = _headers(after[m.path].data)
    return all(one[2] < other[1] for one, other in pairwise(headers))


def _hidden_first(m: Mutation, before: Tree, after: Tree) -> bool:
    """Of a compressed message of magic 0 or 1 the header has the last offset only: what is missing
    before it may be a gap. The offsets still ascend."""
    old, new = before[m.path].data, after[m.path].data
    places = [at for at, size in batch_places(old) if at <= m.at < at + size]
    offsets = [int.from_bytes(new[at : at + 8], "big") for at, _ in batch_places(new)]
    is_wrapper = bool(places) and old[places[0] + 16] < 2 and old[places[0] + 17] & 7 > 0
    return is_wrapper and all(one < other for one, other in pairwise(offsets))


def _has_no_records(m: Mutation, before: Tree, after: Tree) -> bool:
    """Or a control record, whose time nobody asks for."""
    return m.data[22] & 0x20 > 0 or m.data[57:61] == bytes(4)


def _behind_torn_tail(m: Mutation, before: Tree, after: Tree) -> bool:
    """A crash tore the log, and the entry is about what lay behind."""
    log = _log_beside(m, after)
    if log is None or before.get(".kafka_cleanshutdown"):
        return False
    end = sum(size for _, size in batch_places(log.data))
    last = max((last for _, _, last in _headers(log.data)), default=-1)
    at = m.at // 8 * 8
    offset, _ = struct.unpack_from(">ii", after[m.path].data, at)
    return end < log.size and int(os.path.basename(m.path)[:20]) + offset > last


def _no_epoch_falls(m: Mutation, before: Tree, after: Tree) -> bool:
    """Without a checkpoint of epochs, and no lower one behind: it is in no checksum."""
    data = after[m.path].data
    epochs = [
        int.from_bytes(data[at + 12 : at + 16], "big", signed=True) for at, _ in batch_places(data)
    ]
    return epochs == sorted(epochs) and f"{m.path[:-25]}/leader-epoch-checkpoint" not in after


def _leads_to_batch(m: Mutation, before: Tree, after: Tree) -> bool:
    """From the position on, which is that of a batch, one ends at the offset; or that batch begins
    at it, as Kafka before 2.0 made the entry. Entries ascend."""
    base = int(os.path.basename(m.path)[:20])
    log = _log_beside(m, after)
    if log is None:
        return False
    headers = _headers(log.data)
    data = after[m.path].data
    entries = [e for e in struct.iter_unpack(">ii", data[: len(data) // 8 * 8]) if any(e)]
    ordered = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    return ordered and all(
        any(at == position for at, _, _ in headers)
        and any(
            (at >= position and last == base + offset)
            or (at == position and first == base + offset)
            for at, first, last in headers
        )
        for offset, position in entries
    )


def _times_hold(m: Mutation, before: Tree, after: Tree) -> bool:
    """Up to the offset of each entry no record is younger than it says, and one is as old."""
    base = int(os.path.basename(m.path)[:20])
    log = _log_beside(m, after)
    if log is None:
        return False
    times = [
        (last, int.from_bytes(log.data[at + 35 : at + 43], "big", signed=True))
        for at, _, last in _headers(log.data)
    ]
    data = after[m.path].data
    entries = [e for e in struct.iter_unpack(">qi", data[: len(data) // 12 * 12]) if any(e)]
    return all(
        max((stamp for last, stamp in times if last <= base + offset), default=-1) <= timestamp
        and any(stamp == timestamp for _, stamp in times)
        for timestamp, offset in entries
    )


def _sane_in_torn_segment(m: Mutation, before: Tree, after: Tree) -> bool:
    """A crash tore the log, so transactions cannot be replayed, and a segment has such offsets."""
    base = int(os.path.basename(m.path)[:20])
    data = after[m.path].data
    entries = struct.iter_unpack(">hqqqq", data[: len(data) // 34 * 34])
    return _beside_torn_log(m, after, after) and all(
        0 <= stable <= base + 2**31 for *_, stable in entries
    )


def _behind_entries(m: Mutation, before: Tree, after: Tree) -> bool:
    """The entries are the same; what changed are the zeros that a running log keeps behind them."""
    return before[m.path].data.rstrip(b"\0") == after[m.path].data.rstrip(b"\0")


def _in_torn_tail(m: Mutation, before: Tree, after: Tree) -> bool:
    """What a crash left behind the last whole batch, before and after."""
    end = sum(size for _, size in batch_places(before[m.path].data))
    left = sum(size for _, size in batch_places(after[m.path].data))
    return left == end <= m.at and ".kafka_cleanshutdown" not in before


def _beside_torn_log(m: Mutation, before: Tree, after: Tree) -> bool:
    log = _log_beside(m, after)
    return log is not None and sum(size for _, size in batch_places(log.data)) < log.size


def _is_gone(m: Mutation, before: Tree, after: Tree) -> bool:
    return m.op == "splice" and m.path not in after


def _was_last(m: Mutation, before: Tree, after: Tree) -> bool:
    """The last batch of a log, behind which a crash left nothing."""
    old, new = before[m.path].data, after[m.path].data
    directory, _, name = m.path.rpartition("/")
    later = (os.path.basename(p) for p in after if p.startswith(directory + "/"))
    is_last = all(other[:20] <= name[:20] for other in later if ".log" in other)
    return is_last and old.startswith(new) and ".kafka_cleanshutdown" not in before


def _foreign_name(m: Mutation, before: Tree, after: Tree) -> bool:
    name = m.to or m.path
    number = os.path.basename(name)[:20]
    if number.isdecimal() and int(number) >= 2**63:
        return True
    return not SEGMENT_FILE.fullmatch(name.removesuffix(".deleted").removesuffix(".cleaned"))


def _good_directory(m: Mutation, before: Tree, after: Tree) -> bool:
    return _DIRECTORY.fullmatch(m.path) is not None


def _outside_partitions(m: Mutation, before: Tree, after: Tree) -> bool:
    return "/" not in m.path or m.path.partition("/")[0].endswith(("-delete", "-stray"))


_VALID = "a batch with a matching checksum is as somebody wrote it, and nothing contradicts it"

EXPLANATIONS = (
    Explanation(
        r"\.kafka_cleanshutdown( huge|" + _EDITS + ")", "only whether the marker is there counts"
    ),
    Explanation(r"\.kafka_cleanshutdown removed", "as after a crash"),
    Explanation(r"\.lock .*", "the lock says nothing, and is left to those who write"),
    Explanation("clean-stop .*", "outside a partition the mark is nobody's", _outside_partitions),
    Explanation(r"(meta|topic)\.properties .*", "the properties are the same", _same_properties),
    Explanation(
        r"meta\.properties" + _EDITS, "nothing contradicts another identity", _legal_identity
    ),
    Explanation(
        r"topic\.properties( removed|" + _EDITS + ")",
        "no other file has the configuration",
        _alone_with_properties,
    ),
    Explanation(_OFFSETS + _EDITS, "only the ends of the lines differ", _same_lines),
    Explanation(_SMALL + " (emptied|removed)", "a missing checkpoint is one without entries"),
    Explanation(
        _SMALL + " truncated",
        "an empty checkpoint is one without entries",
        lambda m, before, after: after[m.path].size == 0,
    ),
    Explanation(_SMALL + _EDITS, "an offset that the log has", _offsets_inside),
    Explanation(
        r"batch\.(producer_id|producer_epoch|base_sequence|attributes|base_timestamp|plain|packed)"
        " mended",
        _VALID,
    ),
    Explanation(r"batch\.(last_offset_delta|count) mended", "compaction", _batch_ascends),
    Explanation("batch dropped", "as a crash before it was written", _was_last),
    Explanation(r"log \w+", "of a batch that a crash tore", _in_torn_tail),
    Explanation("txnindex (emptied|removed)", "of a segment that a crash tore", _beside_torn_log),
    Explanation(".*", "another mutation has removed the file", _is_gone),
    Explanation(r"batch dropped|batch\.base_offset", "a gap in an old format", _hidden_first),
    Explanation("index" + _IN_PLACE, "the entry leads to its batch all the same", _leads_to_batch),
    Explanation("index" + _IN_PLACE, "of a batch that a crash tore", _behind_torn_tail),
    Explanation(r"batch\.leader_epoch", "the epochs ascend", _no_epoch_falls),
    Explanation(
        r"txnindex\.(producer_id|last_offset|last_stable_offset)",
        "of a segment that a crash tore",
        _sane_in_torn_segment,
    ),
    Explanation(r"batch\.max_timestamp mended", "no record has a time", _has_no_records),
    Explanation("(time|txn)?index" + _IN_PLACE, "room behind the entries", _behind_entries),
    Explanation("timeindex" + _IN_PLACE, "the entry is true of the log", _times_hold),
    Explanation(
        r"snapshot\.((coordinator|producer)_epoch|timestamp|producer_id|txn_first_offset) mended",
        "a snapshot may speak of producers whose batches are gone, and lack those that expired",
    ),
    Explanation(r"snapshot (removed|renamed)", "producers are read from the log then"),
    Explanation("(log|snapshot|(time|txn)?index) added", "a name of no format", _foreign_name),
    Explanation("directory added", "an empty partition", _good_directory),
)

used: Counter[str] = Counter()
"""How often each reason was needed in this process."""


TRUSTED = "a start that trusts the files, and a reader beside it, take batches as they follow"


def excuse_order() -> None:
    """Offsets that go back in a segment that no start has scanned."""
    used[TRUSTED] += 1


def explain(mutation: Mutation, before: Tree, after: Tree) -> str | None:
    for explanation in EXPLANATIONS:
        if re.fullmatch(explanation.label, mutation.label) and _holds(
            explanation, mutation, before, after
        ):
            used[explanation.reason] += 1
            return explanation.reason
    return None


def _holds(explanation: Explanation, mutation: Mutation, before: Tree, after: Tree) -> bool:
    try:
        return explanation.applies(mutation, before, after)
    except (KeyError, IndexError, struct.error):  # another mutation has changed the file as well
        return False
