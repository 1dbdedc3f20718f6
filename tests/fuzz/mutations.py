"""A mutation as a value: what it does to a tree, in bytes. It can be stored and replayed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from tests.fuzz.tree import Entry, Kind, Tree, file_of

DAMAGED_MAX = 64 << 20  # bytes of content that a splice may make


@dataclass(frozen=True, slots=True)
class Mutation:
    """``label`` names the kind of file and the field, as ``explanations`` knows them.

    Operations: ``splice`` replaces ``length`` bytes at ``at`` by ``data``; ``resize`` cuts a file
    or leaves a hole; ``rename``, ``remove``; ``put`` makes an entry of ``kind``; ``meanwhile`` cuts
    the file to ``at`` bytes, and lets it grow again, while it is read.
    """

    label: str
    op: str
    path: str
    at: int = 0
    length: int = 0
    data: bytes = b""
    to: str = ""
    kind: str = ""

    def to_json(self) -> dict[str, Any]:
        shown = asdict(self) | {"data": self.data.hex()}
        return {name: value for name, value in shown.items() if value not in ("", 0)}

    @classmethod
    def from_json(cls, shown: dict[str, Any]) -> Mutation:
        known = {f.name for f in fields(cls)}
        assert shown.keys() <= known, shown
        return cls(**(shown | {"data": bytes.fromhex(shown.get("data", ""))}))

    @property
    def is_racing(self) -> bool:
        return self.op == "meanwhile"


def apply(tree: Tree, mutation: Mutation) -> Tree:
    """The tree after it; the same where what it needs is not there any more."""
    changed, m = dict(tree), mutation
    entry = tree.get(m.path)
    if m.op == "put":
        changed[m.path] = _made(m)
    elif entry is None or m.op == "meanwhile":
        return tree
    elif m.op == "remove":
        _move(changed, m.path, None)
    elif m.op == "rename":
        _move(changed, m.path, m.to)
    elif entry.kind is not Kind.FILE:
        return tree
    elif m.op == "splice":
        data = entry.data[: m.at] + m.data + entry.data[m.at + m.length :]
        changed[m.path] = entry.holding(data[:DAMAGED_MAX])
    elif m.op == "resize":
        data = entry.data[: m.at]
        changed[m.path] = Entry(Kind.FILE, data, m.at, mtime_ns=entry.mtime_ns)
    else:
        raise ValueError(m.op)
    return changed


def _made(m: Mutation) -> Entry:
    kind = Kind(m.kind)
    if kind is Kind.FILE:
        return file_of(m.data)
    return Entry(kind, target=m.to)


def _move(tree: Tree, path: str, to: str | None) -> None:
    """A file or a directory with all below it; what has the new name already goes."""
    for old in [p for p in tree if p == path or p.startswith(path + "/")]:
        entry = tree.pop(old)
        if to is not None:
            tree[to + old[len(path) :]] = entry
