"""Draws mutations of a tree, by kind of file and field.

A mutator looks at the tree and returns a ``Mutation``, or None where there is nothing for it.
"""

from __future__ import annotations

import os
import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from logstore.kernels import crc32c
from tests.fuzz.mutations import Mutation, apply
from tests.fuzz.tree import Kind, Tree


class Field(NamedTuple):
    name: str
    at: int
    code: str


BATCH = (
    Field("base_offset", 0, "q"),
    Field("length", 8, "i"),
    Field("leader_epoch", 12, "i"),
    Field("magic", 16, "b"),
    Field("crc", 17, "i"),
    Field("attributes", 21, "h"),
    Field("last_offset_delta", 23, "i"),
    Field("base_timestamp", 27, "q"),
    Field("max_timestamp", 35, "q"),
    Field("producer_id", 43, "q"),
    Field("producer_epoch", 51, "h"),
    Field("base_sequence", 53, "i"),
    Field("count", 57, "i"),
)
LEGACY = (
    Field("base_offset", 0, "q"),
    Field("length", 8, "i"),
    Field("crc", 12, "i"),
    Field("magic", 16, "b"),
    Field("attributes", 17, "b"),
)
SNAPSHOT_HEADER = (Field("version", 0, "h"), Field("crc", 2, "i"), Field("count", 6, "i"))
SNAPSHOT_ENTRY = (
    Field("producer_id", 0, "q"),
    Field("producer_epoch", 8, "h"),
    Field("last_sequence", 10, "i"),
    Field("last_offset", 14, "q"),
    Field("offset_delta", 22, "i"),
    Field("timestamp", 26, "q"),
    Field("coordinator_epoch", 34, "i"),
    Field("txn_first_offset", 38, "q"),
)
ENTRIES = {
    "index": (8, (Field("offset", 0, "i"), Field("position", 4, "i"))),
    "timeindex": (12, (Field("timestamp", 0, "q"), Field("offset", 8, "i"))),
    "txnindex": (
        34,
        (
            Field("version", 0, "h"),
            Field("producer_id", 2, "q"),
            Field("first_offset", 10, "q"),
            Field("last_offset", 18, "q"),
            Field("last_stable_offset", 26, "q"),
        ),
    ),
}

SEGMENT_FILE = re.compile(r"[^/]+-\d+/\d{20}\.(log|index|timeindex|txnindex|snapshot)(\.swap)?")
FORGED = "FORGED"
ESCAPES = (
    "\x1b[2J\x1b[31m",
    "\n" + FORGED + " line",
    "\r" + FORGED,
    "\x9b2J",
    "\u202e",
    "[bold]x",
    "\x07",
)
_MAGIC_AT = 16


def kind_of(path: str) -> str:
    """``log``, ``index``, …, or the name of a small file; empty for what has no format."""
    found = SEGMENT_FILE.fullmatch(path)
    if found:
        return "log" if found[1] == "log" else found[1]
    name = os.path.basename(path)
    return name if name in TEXTS else ""


TEXTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "topic.properties",
    "meta.properties",
    ".kafka_cleanshutdown",
)


def files(tree: Tree, *kinds: str) -> list[str]:
    """Files of these kinds that are not empty, in order."""
    return sorted(
        path
        for path, entry in tree.items()
        if entry.kind is Kind.FILE
        and entry.data
        and kind_of(path) in kinds
        and "-delete/" not in path
        and "-stray/" not in path
    )


def batch_places(data: bytes) -> list[tuple[int, int]]:
    """Position and size of the batches, going by their lengths."""
    found, at = [], 0
    while at + 17 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if size < 26 or at + size > len(data):
            break
        found.append((at, size))
        at += size
    return found


def mended(batch: bytes) -> bytes:
    """The batch with the checksum that its bytes ask for."""
    if batch[_MAGIC_AT] < 2:
        return batch[:12] + struct.pack(">I", zlib.crc32(batch[16:])) + batch[16:]
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def odd_number(rng: random.Random, old: int, code: str) -> int:
    """Another value for a number of the ``struct`` code: a flipped bit, a neighbour, an edge."""
    bits = 8 * struct.calcsize(code)
    edges = [
        0,
        -1,
        1,
        old + 1,
        old - 1,
        2**31 - 1,
        2**31,
        2**62,
        -(2**31),
        2**63 - 1,
        -(2**63),
        10**6,
    ]
    fitting = [n for n in edges if -(2 ** (bits - 1)) <= n < 2 ** (bits - 1) and n != old]
    if rng.random() < 0.5:
        flipped = (old ^ (1 << rng.randrange(bits))) & (2**bits - 1)
        return flipped - (flipped >> (bits - 1) << bits)
    return rng.choice(fitting)


def change_field(rng: random.Random, data: bytes, base: int, field: Field) -> bytes:
    """The bytes of the field at ``base`` with another value."""
    old = struct.unpack_from(">" + field.code, data, base + field.at)[0]
    return struct.pack(">" + field.code, odd_number(rng, old, field.code))


# -- segments --------------------------------------------------------------------------------------


def _some_batch(rng: random.Random, tree: Tree) -> tuple[str, bytes, int, int] | None:
    logs = files(tree, "log")
    if not logs:
        return None
    path = rng.choice(logs)
    data = tree[path].data
    places = batch_places(data)
    if not places:
        return None
    at, size = rng.choice([places[-1], places[0], *places])
    return path, data, at, size


def batch_field(rng: random.Random, tree: Tree) -> Mutation | None:
    found = _some_batch(rng, tree)
    if found is None:
        return None
    path, data, at, size = found
    layout = BATCH if data[at + _MAGIC_AT] == 2 and size >= 61 else LEGACY
    field = rng.choice(layout)
    batch = bytearray(data[at : at + size])
    new = change_field(rng, batch, 0, field)
    batch[field.at : field.at + len(new)] = new
    covered = field.at > _MAGIC_AT and field.name != "crc"
    if covered and rng.random() < 0.6:
        return Mutation(
            f"batch.{field.name} mended", "splice", path, at, size, mended(bytes(batch))
        )
    return Mutation(f"batch.{field.name}", "splice", path, at + field.at, len(new), new)


def batch_body(rng: random.Random, tree: Tree) -> Mutation | None:
    """Bytes of the records, packed or not: varints, lengths and content."""
    found = _some_batch(rng, tree)
    if found is None:
        return None
    path, data, at, size = found
    head = 61 if data[at + _MAGIC_AT] == 2 else 18
    if size <= head:
        return None
    batch = bytearray(data[at : at + size])
    for _ in range(rng.randint(1, 3)):
        place = rng.choice((head + rng.randrange(min(12, size - head)), rng.randrange(head, size)))
        batch[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, batch[place] ^ (1 << rng.randrange(8))))
    grown = rng.choice((b"", b"", b"\xff" * 10, b"\0", bytes(batch[head:])))
    place = rng.randrange(head, size)
    batch[place:place] = grown
    cut = rng.choice((0, 0, 0, 1, 5))
    del batch[max(head, len(batch) - cut) :]
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    packed = "packed" if batch[22 if head == 61 else 17] & 7 else "plain"
    if rng.random() < 0.7:
        return Mutation(f"batch.{packed} mended", "splice", path, at, size, mended(bytes(batch)))
    return Mutation(f"batch.{packed}", "splice", path, at, size, bytes(batch))


def batch_moved(rng: random.Random, tree: Tree) -> Mutation | None:
    """Whole batches: dropped, twice, in another order, or brought from elsewhere."""
    found, other = _some_batch(rng, tree), _some_batch(rng, tree)
    if found is None or other is None:
        return None
    path, data, at, size = found
    batch, foreign = data[at : at + size], other[1][other[2] : other[2] + other[3]]
    following = next((p for p in batch_places(data) if p[0] == at + size), None)
    match rng.randrange(5):
        case 0:
            return Mutation("batch dropped", "splice", path, at, size)
        case 1:
            return Mutation("batch doubled", "splice", path, at, 0, batch)
        case 2:
            return Mutation("batch brought", "splice", path, at, 0, foreign)
        case 3:
            return Mutation("batch replaced", "splice", path, at, size, foreign)
    if following is None:
        return None
    both = data[at + size : at + size + following[1]] + batch
    return Mutation("batches swapped", "splice", path, at, len(both), both)


# -- any file --------------------------------------------------------------------------------------


def byte_range(rng: random.Random, tree: Tree) -> Mutation | None:
    kinds = rng.choice(
        (["log"], ["log"], ["index", "timeindex", "txnindex"], ["snapshot"], [*TEXTS])
    )
    paths = files(tree, *kinds)
    if not paths:
        return None
    path = rng.choice(paths)
    data, kind = tree[path].data, kind_of(path)
    at = rng.randrange(len(data))
    length = min(rng.choice((1, 8, 61, 512, rng.randint(1, len(data)))), len(data) - at)
    piece = data[at : at + length]
    noise = rng.randbytes(rng.choice((1, 7, 64, 700)))
    name, cut, put = rng.choice(
        (
            ("bit", 1, bytes([data[at] ^ (1 << rng.randrange(8))])),
            ("zeroed", length, bytes(length)),
            ("doubled", 0, piece),
            ("deleted", length, b""),
            ("inserted", 0, noise),
            ("noise", length, rng.randbytes(length)),
            ("truncated", len(data) - at, b""),
            ("ones", length, b"\xff" * length),
        )
    )
    if rng.random() < 0.1:
        name, at, cut = "tail", len(data), 0
        put = rng.choice((noise, bytes(len(noise)), data[: len(noise)]))
    return Mutation(f"{kind} {name}", "splice", path, at, cut, put)


# -- indexes, snapshots ----------------------------------------------------------------------------


def index_entry(rng: random.Random, tree: Tree) -> Mutation | None:
    kind = rng.choice(tuple(ENTRIES))
    width, layout = ENTRIES[kind]
    paths = [path for path in files(tree, kind) if len(tree[path].data) >= width]
    if not paths:
        return None
    path = rng.choice(paths)
    data = tree[path].data
    used = max(len(data.rstrip(b"\0")) // width, 1)
    slot = rng.choice((0, used - 1, rng.randrange(len(data) // width)))
    field = rng.choice(layout)
    new = change_field(rng, data, slot * width, field)
    at = slot * width + field.at
    return Mutation(f"{kind}.{field.name}", "splice", path, at, len(new), new)


def snapshot_field(rng: random.Random, tree: Tree) -> Mutation | None:
    paths = [path for path in files(tree, "snapshot") if len(tree[path].data) >= 10]
    if not paths:
        return None
    path = rng.choice(paths)
    data = bytearray(tree[path].data)
    count = (len(data) - 10) // 46
    in_entry = count > 0 and rng.random() < 0.8
    field = rng.choice(SNAPSHOT_ENTRY if in_entry else SNAPSHOT_HEADER)
    base = 10 + 46 * rng.randrange(count) if in_entry else 0
    new = change_field(rng, data, base, field)
    data[base + field.at : base + field.at + len(new)] = new
    if field.name == "crc" or rng.random() < 0.3:
        at = base + field.at
        return Mutation(f"snapshot.{field.name}", "splice", path, at, len(new), new)
    data[2:6] = struct.pack(">I", crc32c(bytes(data[6:])))
    return Mutation(f"snapshot.{field.name} mended", "splice", path, 0, len(data), bytes(data))


# -- small texts -----------------------------------------------------------------------------------

NUMBERS = (
    "0",
    "-1",
    "1",
    "007",
    "+5",
    "1e3",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "9" * 5000,
    "",
    " ",
    "x",
    "١٢",
    "1_000",
)


def _new_number(rng: random.Random, line: str) -> str:
    numbers = list(re.finditer(r"\d+", line))
    if not numbers:
        return line + rng.choice(NUMBERS)
    found = rng.choice(numbers)
    near = str(int(found[0]) + rng.choice((1, -1, 7))) if len(found[0]) < 30 else "3"
    return line[: found.start()] + rng.choice((near, *NUMBERS)) + line[found.end() :]


LineEdit = Callable[[random.Random, str], list[str]]
LINE_EDITS: dict[str, LineEdit] = {
    "number": lambda rng, line: [_new_number(rng, line)],
    "line doubled": lambda rng, line: [line, line],
    "line dropped": lambda rng, line: [],
    "line garbled": lambda rng, line: [rng.choice(ESCAPES)],
    "escape": lambda rng, line: [rng.choice(ESCAPES) + line],
    "blank line": lambda rng, line: ["", line],
    "long line": lambda rng, line: ["x" * 100_000, line],
    "spaces": lambda rng, line: [f" {line}  "],
    "not utf-8": lambda rng, line: [line + "\udcff\udcfe"],
    "nul": lambda rng, line: [line + "\0"],
}
TEXT_EDITS: dict[str, Callable[[str], str]] = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "no newline": lambda text: text.rstrip("\n"),
    "emptied": lambda text: "",
}


def text_edit(rng: random.Random, tree: Tree) -> Mutation | None:
    paths = files(tree, *TEXTS)
    if not paths:
        return None
    path = rng.choice(paths)
    data = tree[path].data
    text = os.fsdecode(data)
    name = rng.choice((*LINE_EDITS, *TEXT_EDITS))
    if name in TEXT_EDITS:
        text = TEXT_EDITS[name](text)
    else:
        lines = text.split("\n")
        n = rng.randrange(len(lines))
        lines[n : n + 1] = LINE_EDITS[name](rng, lines[n])
        text = "\n".join(lines)
    return Mutation(f"{kind_of(path)} {name}", "splice", path, 0, len(data), os.fsencode(text))


def new_entry(rng: random.Random, tree: Tree) -> Mutation | None:
    """A checkpoint with one more entry, of a partition that is not here."""
    paths = files(tree, *TEXTS[:3])
    if not paths:
        return None
    path = rng.choice(paths)
    lines = tree[path].data.decode("utf-8", "replace").split("\n")
    topic = rng.choice((*ESCAPES, "missing", "a b", "..", "\udcff")).replace("\n", "\x0b")
    lines[2:2] = [f"{topic} {rng.choice(NUMBERS[:4])} {rng.choice(NUMBERS[:9])}"]
    if len(lines) > 1 and lines[1].isdigit() and len(lines[1]) < 9:
        lines[1] = str(int(lines[1]) + 1)
    new = os.fsencode("\n".join(lines))
    return Mutation(f"{kind_of(path)} entry", "splice", path, 0, len(tree[path].data), new)


# -- names, special files, sizes -------------------------------------------------------------------


def _names(rng: random.Random, path: str) -> Sequence[str]:
    stem, dot, suffix = os.path.basename(path).partition(".")
    near = f"{int(stem) + rng.choice((-1, 1, 10)):020}" if stem.isdigit() and int(stem) else "5"
    return (
        f"{'9' * 20}{dot}{suffix}",
        f"{2**63 - 1:020}{dot}{suffix}",
        f"{near}{dot}{suffix}",
        f"+{stem}{dot}{suffix}",
        f"{stem.lstrip('0') or '0'}{dot}{suffix}",
        f"{stem}{dot}{suffix}.bak",
        f"{stem}{dot}{suffix}.deleted",
        f"{stem}{dot}{suffix}.cleaned",
        f"{stem}{dot}{suffix}.swap",
        f"{stem}{dot}{suffix}.tmp",
        f"{stem}\n{FORGED}{dot}{suffix}",
        f"\x1b[2J{stem}{dot}{suffix}",
        f"\udcff{dot}{suffix}",
        f"{stem}{dot}{suffix}{dot}{suffix}",
        f"-{stem}{dot}{suffix}",
    )


DIRECTORY_NAMES = (
    "a b-0",
    "\udcff\udcfe-0",
    f"x\n{FORGED}-0",
    "\x1b[31mred-0",
    "noname",
    "-0",
    "t-2147483648",
    "t--1",
    "t-00",
    "t-+1",
    "..-0",
    "x" * 250 + "-0",
    "t-0.zz-delete",
    "t-0.\x1b[2J-stray",
    "t-0-future",
    "[bold]b-0",
    "t-١",
    "\x9bc1-0",
    "topic-creation-x",
    "t-0 ",
    "\u202ertl-3",
)


def renamed(rng: random.Random, tree: Tree) -> Mutation | None:
    paths = files(tree, "log", "log", *ENTRIES, "snapshot")
    directories = sorted(p for p, e in tree.items() if e.kind is Kind.DIRECTORY and "/" not in p)
    if directories and rng.random() < 0.3:
        return Mutation(
            "directory renamed", "rename", rng.choice(directories), to=rng.choice(DIRECTORY_NAMES)
        )
    if not paths:
        return None
    path = rng.choice(paths)
    to = os.path.join(os.path.dirname(path), rng.choice(_names(rng, path)))
    return Mutation(f"{kind_of(path)} renamed", "rename", path, to=to)


def removed(rng: random.Random, tree: Tree) -> Mutation | None:
    paths = files(tree, "log", *ENTRIES, "snapshot", *TEXTS)
    if not paths:
        return None
    path = rng.choice(paths)
    return Mutation(f"{kind_of(path)} removed", "remove", path)


def added(rng: random.Random, tree: Tree) -> Mutation | None:
    """One more file or directory, under a hostile name or a name of the format."""
    if rng.random() < 0.4:
        return Mutation("directory added", "put", rng.choice(DIRECTORY_NAMES), kind=Kind.DIRECTORY)
    paths = files(tree, "log", *ENTRIES, "snapshot")
    if not paths:
        return None
    path = rng.choice(paths)
    to = os.path.join(os.path.dirname(path), rng.choice(_names(rng, path)))
    if to in tree:
        return None
    data = rng.choice((b"", bytes(100), rng.randbytes(100), tree[path].data))
    return Mutation(f"{kind_of(path)} added", "put", to, data=data, kind=Kind.FILE)


def special(rng: random.Random, tree: Tree) -> Mutation | None:
    """Something that is no regular file in a file's place."""
    extra = [".lock", "cleaner-offset-checkpoint", "clean-stop"]
    paths = [*files(tree, "log", *ENTRIES, "snapshot", *TEXTS), *extra]
    path = rng.choice(paths)
    if path == "clean-stop":
        directories = sorted(p for p, e in tree.items() if e.kind is Kind.DIRECTORY)
        path = os.path.join(rng.choice(directories or [""]), path)
    kind, to = rng.choice(
        (
            (Kind.FIFO, ""),
            (Kind.FIFO, ""),
            (Kind.SOCKET, ""),
            (Kind.DIRECTORY, ""),
            (Kind.LINK, "/dev/zero"),
            (Kind.LINK, "nowhere"),
            (Kind.LINK, os.path.basename(path)),
            (Kind.LINK, ".."),
            (Kind.LINK, "/dev/full"),
        )
    )
    name = kind_of(path) or os.path.basename(path)
    return Mutation(f"{name} {kind} {to}".strip(), "put", path, kind=kind, to=to)


def size(rng: random.Random, tree: Tree) -> Mutation | None:
    paths = files(tree, "log", *ENTRIES, "snapshot", *TEXTS)
    if not paths:
        return None
    path = rng.choice(paths)
    there = len(tree[path].data)
    to = rng.choice((0, 10 << 30, 2 << 30, (2 << 30) - 1, there + 4096, there + 1))
    grown = "emptied" if not to else "grown" if to < 1 << 20 else "huge"
    return Mutation(f"{kind_of(path)} {grown}", "resize", path, to)


def meanwhile(rng: random.Random, tree: Tree) -> Mutation | None:
    paths = files(tree, "log", "log", *ENTRIES, "snapshot", *TEXTS)
    if not paths:
        return None
    path = rng.choice(paths)
    at = rng.randrange(len(tree[path].data))
    return Mutation(f"{kind_of(path)} meanwhile", "meanwhile", path, at)


Mutator = Callable[[random.Random, Tree], Mutation | None]
MUTATORS: dict[Mutator, int] = {
    batch_field: 24,
    batch_body: 10,
    batch_moved: 8,
    byte_range: 16,
    index_entry: 10,
    snapshot_field: 8,
    text_edit: 8,
    new_entry: 3,
    renamed: 5,
    removed: 3,
    added: 4,
    special: 5,
    size: 3,
    meanwhile: 2,
}


def draw(rng: random.Random, tree: Tree) -> list[Mutation]:
    """One to three mutations, each of the tree that those before it left."""
    drawn: list[Mutation] = []
    wanted = rng.choice((1, 1, 1, 2, 3))
    while len(drawn) < wanted:
        mutation = rng.choices(tuple(MUTATORS), tuple(MUTATORS.values()))[0](rng, tree)
        if mutation is None:
            continue
        changed = apply(tree, mutation)
        if changed != tree or mutation.is_racing:
            drawn.append(mutation)
            tree = changed
    return drawn
