"""Judges what came of a mutated directory. It knows every batch that was written."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from logstore.common.errors import LogstoreError
from logstore.format.reader import batch_records, iter_batches
from tests.crash.model import base_of, last_of
from tests.fuzz.children import MEMORY_MAX
from tests.fuzz.explanations import excuse_order, explain
from tests.fuzz.mutations import Mutation
from tests.fuzz.mutators import FORGED, batch_places, mended
from tests.fuzz.originals import Known, Original, Row, row_of
from tests.fuzz.runs import APPENDED, Results, Run, digest, is_partition
from tests.fuzz.tree import Kind, Tree, differences

LOG_FILE = re.compile(r"([^/]+)/\+?\d+\.log(\.swap)?", re.ASCII | re.DOTALL)
SETTLED_LOG = re.compile(r"([^/]+)/\d{20}\.log")
NUMBERED = re.compile(r"(\d{20})\.")
_EMPTY_SNAPSHOT = 10  # bytes
_RAW = re.compile(
    rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]"  # control characters
    rb"|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"  # without width, or turning
    rb"|\xed[\xa0-\xbf]"  # lone surrogates
)
_RESET = b"\x1b[0m"  # ours: ends the style of a line on a terminal, also on one without colours
_FRAME = re.compile(r'File ".*?/((?:logstore|checkpoints|replication)/[^"]+)", line \d+, in (\S+)')
_SHORT = (b"MemoryError", b"ResourceBusyError", b"Cannot allocate memory", b"Errno 12")


@dataclass(frozen=True, slots=True)
class Failure:
    """``signature`` is the same for all failures with one cause, as far as can be told."""

    signature: str
    detail: str = ""


@dataclass(slots=True)
class Case:
    """A mutated directory, and what is known of it."""

    original: Original
    mutations: list[Mutation]
    tree: Tree

    @property
    def is_racing(self) -> bool:
        return any(m.is_racing for m in self.mutations)

    @property
    def is_forged(self) -> bool:
        """Whether a batch may be there that is valid and was never written so."""
        return any("mended" in m.label or m.label.startswith("batch") for m in self.mutations)


def judge(case: Case, results: Results) -> Iterator[Failure]:
    for run in results.runs:
        yield from check_manners(run)
    if case.is_racing or not results.complete:
        return
    for run in results.runs:
        if run.changed:
            yield Failure(f"changed by {run.name}: {_general(run.changed[0])}", str(run.changed))
    yield from check_rehearsal(results)
    yield from check_nothing_lost(case, results)
    yield from check_prefix_stays(case, results)
    yield from check_start(case, results)
    yield from check_second_recovery(case, results)
    yield from check_records(case, results)
    yield from check_noticed(case, results)


# -- manners of every run --------------------------------------------------------------------------


def check_manners(run: Run) -> Iterator[Failure]:
    """Ends in time with a known exit code, in bounded memory, and prints nothing raw."""
    outcome, is_library = run.outcome, not run.arguments
    printed = outcome.stderr + (b"" if run.prints_values else outcome.stdout)
    text = (outcome.stdout + outcome.stderr).decode("utf-8", "replace")
    if outcome.code is None:
        yield Failure(f"hang: {run.name}", f"killed after {outcome.seconds:.1f} s")
    elif outcome.code < 0:
        yield Failure(f"signal {-outcome.code}: {run.name}")
    elif "Traceback (most recent call last)" in text:
        yield Failure(f"traceback: {run.name}: {_origin(text)}", text[-2000:])
    elif outcome.code not in ((0,) if is_library else (0, 1, 2)):
        yield Failure(f"exit code {outcome.code}: {run.name}", text[-2000:])
    if outcome.grown > MEMORY_MAX:
        yield Failure(f"memory: {run.name}", f"{outcome.grown >> 20} MiB more")
    if any(short in outcome.stdout + outcome.stderr for short in _SHORT):
        yield Failure(f"memory limit met: {run.name}", text[-1000:])
    printed = printed.replace(_RESET, b"")
    raw = _RAW.search(printed)
    if raw:
        around = printed[max(raw.start() - 150, 0) : raw.end() + 40]
        yield Failure(f"raw byte: {run.name}: {_about(around)}", repr(around))
    elif not is_library and (b"\n" + FORGED.encode()) in b"\n" + printed:
        at = printed.find(FORGED.encode())
        around = printed[max(at - 150, 0) : at + 40]
        yield Failure(f"forged line: {run.name}: {_about(around)}", repr(around))


def _origin(text: str) -> str:
    frames = _FRAME.findall(text)
    last = text.strip().splitlines()[-1]
    return f"{last.split(':')[0]} in {' '.join(frames[-1]) if frames else '?'}"


def _about(around: bytes) -> str:
    """The finding or warning of which raw bytes are a part, without what differs each time."""
    text = around.decode("utf-8", "replace")
    rule = re.search(r"\b[FIS]-\d+[a-z]?\b", text)
    return rule[0] if rule else _general(re.sub(r"[^\w ]+", " ", text)[-60:])


def _general(text: str) -> str:
    return re.sub(r"\d+", "N", text)


# -- recovery --------------------------------------------------------------------------------------


def reports_of(run: Run | None) -> dict[str, dict[str, Any]]:
    told = run.json() if run else None
    return {os.path.basename(r["directory"]): r for r in told["reports"]} if told else {}


def check_rehearsal(results: Results) -> Iterator[Failure]:
    """``--dry-run`` tells what the real run does."""
    rehearsed, real = results.run("recover --dry-run"), results.run("recover")
    if rehearsed is None or real is None:
        return
    if rehearsed.outcome.code != real.outcome.code:
        codes = f"{rehearsed.outcome.code} and {real.outcome.code}"
        yield Failure(f"dry run exits otherwise: {codes}", _outputs(rehearsed, real))
        return
    one, other = reports_of(rehearsed), reports_of(real)
    for name in sorted(one.keys() & other.keys()):
        for key in ("logStartOffset", "logEndOffset", "bytesCut", "bytesSetAside"):
            if one[name][key] != other[name][key]:
                detail = f"{name}: {one[name][key]} and {other[name][key]}"
                yield Failure(f"dry run tells otherwise: {key}", detail)


def _outputs(*runs: Run) -> str:
    return "\n".join(
        (run.outcome.stderr or run.outcome.stdout).decode("utf-8", "replace")[-800:] for run in runs
    )


def directory_of(path: str) -> str:
    return path.partition("/")[0]


def whole_batches(case: Case, tree: Tree) -> dict[str, list[Known]]:
    """Of each directory with a log, the original batches that lie whole in its ``.log`` files."""
    found: dict[str, list[Known]] = {}
    for path, entry in tree.items():
        if entry.kind is Kind.FILE and LOG_FILE.fullmatch(path):
            directory = directory_of(path)
            if is_partition(directory, tree[directory].kind):
                there = [b for b in case.original.batches if next(b.positions(entry.data), -1) >= 0]
                found.setdefault(directory, []).extend(there)
    return found


def settled_logs(tree: Tree, directory: str) -> list[bytes]:
    """The ``.log`` files of a directory, by base offset."""
    return [
        tree[path].data
        for path in sorted(tree)
        if directory_of(path) == directory and SETTLED_LOG.fullmatch(path)
    ]


def logged(tree: Tree, directory: str, start: int) -> list[bytes]:
    """The batches of a log in order, from the segment of ``start`` on, up to the first place that
    is none."""
    found: list[bytes] = []
    below = sum(base <= start for base in _bases(tree, directory)) - 1
    for data in settled_logs(tree, directory)[max(below, 0) :]:
        at = 0
        for position, size in batch_places(data):
            found.append(data[position : position + size])
            at = position + size
        if at < len(data):
            break
    return found


def check_nothing_lost(case: Case, results: Results) -> Iterator[Failure]:
    """Each whole batch is in the log or kept beside it; one that left the log is told of."""
    whole = whole_batches(case, case.tree)
    recovered, run = results.recovered, results.run("recover")
    assert run is not None
    reports = reports_of(run)
    for ends, tree in (("recover", recovered), ("manager", results.opened)):
        held: dict[str, bytes] = defaultdict(bytes)
        for path, entry in tree.items():
            if not path.endswith(".deleted") and "-delete/" not in path:
                held[directory_of(path)] += entry.data + b"|"
        for directory, batches in whole.items():
            elsewhere = [held[d] for d in held if d not in case.tree]
            lost = [b for b in batches if not _holds(b, [held[directory], *elsewhere])]
            if lost:
                yield Failure(f"batch lost by {ends}", f"{directory}: {_list(lost)}")
    for directory, batches in whole.items():
        log = b"|".join(settled_logs(recovered, directory))
        start = reports.get(directory, {}).get("logStartOffset", -1)
        out = [b for b in batches if b.kept not in log and b.last >= start]
        told = run.outcome.code == 2 or (
            run.outcome.code == 1 and bool(reports.get(directory, {}).get("warnings"))
        )
        if out and not told and run.outcome.code is not None:
            detail = f"{directory}: {_list(out)}, exit {run.outcome.code}"
            yield Failure("batch left the log untold", detail)


def check_prefix_stays(case: Case, results: Results) -> Iterator[Failure]:
    """What lies before the first changed byte of a log stays in the log, but for what is deleted:
    below the log start."""
    start_changed = any("log-start" in m.label for m in case.mutations)
    reports = reports_of(results.run("recover"))
    for directory in case.original.starts:
        kept = b"|".join(settled_logs(results.recovered, directory))
        moved = any(_names_a_log(m, directory) for m in case.mutations)
        if start_changed or moved or directory not in reports:  # a name below disproves an offset
            continue
        start = reports[directory]["logStartOffset"]
        prefix = _unchanged_prefix(case, directory)
        gone = [b for b in prefix if b.data not in kept and b.last >= start]
        if gone:
            yield Failure("batch before the damage left the log", f"{directory}: {_list(gone)}")


def _names_a_log(m: Mutation, directory: str) -> bool:
    """Whether a segment has a name that it had not: what lies before it may seem to overlap."""
    return directory_of(m.to or m.path) == directory and (
        m.op == "rename" or m.label == "log added"
    )


def check_start(case: Case, results: Results) -> Iterator[Failure]:
    """A log begins where it began, or at its first segment: no start hides what is there."""
    if any("log-start" in m.label for m in case.mutations):
        return
    for directory, report in reports_of(results.run("recover")).items():
        bases = _bases(results.recovered, directory)
        known = max(case.original.starts.get(directory, 0), bases[0] if bases else 0)
        if report["logStartOffset"] > known:
            detail = f"{directory}: {report['logStartOffset']}, not {known}"
            yield Failure("a log begins too late", detail)


def _unchanged_prefix(case: Case, directory: str) -> Iterator[Known]:
    known = {b.data: b for b in case.original.batches if b.partition == directory}
    for path in sorted(p for p in case.original.tree if directory_of(p) == directory):
        if not SETTLED_LOG.fullmatch(path):
            continue
        before, after = case.original.tree[path], case.tree.get(path)
        for at, size in batch_places(before.data):
            if after is None or after.data[at : at + size] != before.data[at : at + size]:
                return
            yield known[before.data[at : at + size]]
        if after != before:
            return


def _holds(batch: Known, blobs: list[bytes]) -> bool:
    return any(batch.kept in blob for blob in blobs)


def _list(batches: list[Known]) -> str:
    return ", ".join(f"[{b.base}..{b.last}]" for b in batches[:20]) + f" ({len(batches)})"


def check_second_recovery(case: Case, results: Results) -> Iterator[Failure]:
    """A recovered directory needs no recovery, and ``verify`` finds no error in it."""
    first, again = results.run("recover"), results.run("recover again")
    after = results.run("verify after")
    assert first is not None
    assert again is not None
    assert after is not None
    if first.outcome.code not in (0, 1):
        return
    if again.outcome.code != 0 and not _says_it_again(first, again):
        yield Failure(f"second recover exits {again.outcome.code}", _outputs(first, again))
    one, other = (without_empty_snapshots(t) for t in (results.recovered, results.recovered_again))
    changed = differences(one, other, times=False)
    if case.is_forged:  # offsets that overlap by a valid checksum: snapshots lie inside batches
        changed = [text for text in changed if ".snapshot" not in text]
    if changed:
        name = _general(os.path.basename(changed[0]))
        yield Failure(f"second recover changes: {name}", str(changed))
    reports = reports_of(first)
    for finding in (after.json() or {}).get("findings", ()):
        path = finding["file"].removeprefix(after.arguments[-1]).lstrip("/")
        name = os.path.basename(path)
        forged = case.is_forged and name.endswith((".log", ".txnindex", ".snapshot"))
        if finding["severity"] != "error" or forged or _is_told_fall(finding, reports, path):
            continue
        if was_scanned(path, reports.get(directory_of(path)), results.recovered):
            place = f"{path} at {finding['position']}: {finding['message']}"
            yield Failure(f"error after recover: {finding['rule']} {_general(name)}", place)


def _says_it_again(first: Run, again: Run) -> bool:
    """Nothing is cut, and every warning was given before: of what an operator has to remove, such
    as a file under a name that is none."""
    before, after = reports_of(first), reports_of(again)
    return again.outcome.code == 1 and all(
        not report["bytesCut"] and set(report["warnings"]) <= set(before[name]["warnings"])
        for name, report in after.items()
        if name in before
    )


def _is_told_fall(finding: Any, reports: dict[str, dict[str, Any]], path: str) -> bool:
    """An epoch is in no checksum: a batch is kept whatever it says, and the report tells."""
    report = reports.get(directory_of(path))
    return finding["rule"] == "log-epoch" and report is not None and report["epochFalls"] > 0


def without_empty_snapshots(tree: Tree) -> Tree:
    """A snapshot of no producer says nothing: each close may write it, each start drop it."""
    return {
        path: entry
        for path, entry in tree.items()
        if not (path.endswith(".snapshot") and entry.size == _EMPTY_SNAPSHOT)
    }


def was_scanned(path: str, report: dict[str, Any] | None, tree: Tree) -> bool:
    """Whether recovery has looked at what ``path`` says: after a clean stop, and below the recovery
    point, a start takes the files as they are."""
    if report is None or report["clean"]:
        return False
    found = NUMBERED.match(os.path.basename(path))
    if found is None:
        return True
    bases = _bases(tree, directory_of(path))
    return int(found[1]) in bases[len(bases) - report["segmentsScanned"] :]


def _bases(tree: Tree, directory: str) -> list[int]:
    return sorted(
        int(os.path.basename(path)[:20])
        for path in tree
        if directory_of(path) == directory and SETTLED_LOG.fullmatch(path)
    )


# -- what is read ----------------------------------------------------------------------------------


def check_records(case: Case, results: Results) -> Iterator[Failure]:
    """Reading gives what the files hold: original records, in order, and what was appended."""
    for name, tree in (("reader", case.tree), ("manager", results.opened), ("standalone", None)):
        run = results.run(name)
        told = run.json() if run else None
        if not told:
            continue
        for directory, log in told["logs"].items():
            rows = [tuple(row) for row in log["rows"]]
            offsets = [offset for offset, _ in rows]
            falls = [b for a, b in pairwise(offsets) if a >= b]
            if falls and _is_order_trusted(name, directory, falls, results):
                excuse_order()
            elif falls:
                yield Failure(f"offsets go back: {name}", f"{directory}: back to {falls}")
            wrong = _unknown(case, directory, rows)
            if wrong:
                yield Failure(f"wrong record: {name}", f"{directory}: offsets {wrong[:20]}")
        for directory, log in told.get("again", {}).items():
            yield from _check_second_life(case, directory, told["logs"].get(directory), log)
        if name == "manager" and tree is not None:
            for directory, log in told["logs"].items():
                yield from _check_complete(case, directory, log, tree)


def _is_order_trusted(name: str, directory: str, falls: list[int], results: Results) -> bool:
    """Whether the offsets go back only where no start compares them: below what it scans."""
    report = reports_of(results.run("recover")).get(directory)
    if name != "manager" or report is None or report["clean"]:
        return True
    bases = _bases(results.recovered, directory)
    scanned = bases[len(bases) - report["segmentsScanned"] :]
    return not scanned or all(offset < scanned[0] for offset in falls)


def _check_second_life(case: Case, directory: str, first: Any, again: Any) -> Iterator[Failure]:
    if first is None or "appended" not in first or not (first.get("read") and again.get("read")):
        return
    if again["rows"][: len(first["rows"])] != first["rows"]:
        yield Failure("records differ after a restart", directory)
    elif [row[0] for row in again["rows"][len(first["rows"]) :]] != [first["appended"]]:
        yield Failure("an append did not survive a restart", directory)
    arrow = first.get("arrow")
    if arrow != len(first["rows"]) and not case.is_forged:
        yield Failure("to_arrow counts otherwise", f"{directory}: {arrow}")


def _check_complete(case: Case, directory: str, log: Any, tree: Tree) -> Iterator[Failure]:
    """All that lies in the files of the open log was read, unless a batch cannot be decoded."""
    expected: list[tuple[int, str]] = []
    end = -1
    for raw in logged(tree, directory, log["start"]):
        rows = _rows_of(case, raw)
        if rows is None or base_of(raw) <= end:
            break
        end = last_of(raw) if raw[16] == 2 else base_of(raw)
        expected += [(row.offset, digest(row)) for row in rows if row.offset >= log["start"]]
    got = {tuple(row) for row in log["rows"]}
    missing = [
        offset
        for offset, content in expected
        if (offset, content) not in got and offset != log.get("appended")
    ]
    if missing and _offset_before_damage(missing, log):
        yield Failure("records not read", f"{directory}: offsets {missing[:20]} ({len(missing)})")


def _offset_before_damage(missing: list[int], log: Any) -> bool:
    """Whether reading should have come as far: it ends at a batch that cannot be decoded."""
    if log.get("read"):
        return missing[0] < log["end"]
    return bool(log["rows"]) and missing[0] < log["rows"][-1][0]


def _rows_of(case: Case, raw: bytes) -> list[Row] | None:
    """The records of a batch without control records; None where it cannot be decoded."""
    if raw[16] == 2 and raw[22] & 0x20:
        return []
    known = next((b for b in case.original.batches if b.data == raw), None)
    if known is not None:
        return list(known.rows)
    try:
        return [row_of(r) for b in iter_batches(raw) for r in batch_records(raw, b)]
    except LogstoreError:
        return None


def _unknown(case: Case, directory: str, rows: list[tuple[int, str]]) -> list[int]:
    """Offsets of records that are neither original ones nor of a forged batch."""
    known = {
        (row.offset, digest(row))
        for b in case.original.batches
        if b.partition == directory or case.is_forged or directory not in case.original.starts
        for row in b.rows
    }
    odd = [row for row in rows if row not in known]
    if not odd:
        return []
    forged = {
        (row.offset, digest(row))
        for path, entry in case.tree.items()
        if entry.kind is Kind.FILE and directory_of(path) == directory
        for raw in valid_batches(entry.data)
        for row in _rows_of(case, raw) or ()
    }
    return [offset for offset, content in odd if (offset, content) not in forged]


def valid_batches(data: bytes) -> Iterator[bytes]:
    """Every stretch, at whatever byte, that is a batch with a matching checksum."""
    for at in range(len(data) - 26):
        if data[at + 16] > 2:
            continue
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if 26 <= size <= len(data) - at and (data[at + 16] < 2 or size >= 61):
            raw = data[at : at + size]
            if mended(raw) == raw:
                yield raw


# -- verify ----------------------------------------------------------------------------------------


def findings_of(run: Run | None) -> frozenset[str] | None:
    """What a ``verify`` told, without the path of the directory; None if it failed."""
    told = run.json() if run else None
    if told is None or run is None:
        return None
    root = run.arguments[-1]
    found = [
        f"{f['severity']} {f['rule']} {f['file']} {f['position']} {f['message']}"
        for f in told["findings"]
    ]
    return frozenset(text.replace(root, "") for text in [*found, *told["unusable"]])


def _is_about(text: str, mutation: Mutation) -> bool:
    """Whether a finding is of the partition that was changed, or of the log directory's files."""
    places = [directory_of(p) for p in (mutation.path, mutation.to) if p]
    return any(f"/{place}/" in text or f"/{place} " in text for place in places) or (
        "/" not in mutation.path  # its entries are compared with the partitions
    )


def check_noticed(case: Case, results: Results) -> Iterator[Failure]:
    """``verify`` finds what was changed, unless there is a reason why nobody can."""
    found = findings_of(results.run("verify json"))
    if found is None:
        return
    told = found - case.original.baseline
    renamed = {m.path for m in case.mutations if m.op == "rename"}
    for mutation in case.mutations:
        if any(_is_about(text, mutation) for text in told):
            continue
        if told and directory_of(mutation.path) in renamed:  # not checked under a bad name
            continue
        if explain(mutation, case.original.tree, case.tree) is None:
            label = mutation.label
            yield Failure(f"not noticed by verify: {label}", str(mutation.to_json())[:600])


__all__ = ["APPENDED", "Case", "Failure", "findings_of", "judge"]
