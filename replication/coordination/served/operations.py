"""Requests of ZooKeeper's protocol, carried out on the tree: from a body to the body of the answer.

Everything is as in a standalone ZooKeeper 3.6 or later, but for access lists: they are taken and
ignored, and each node says that it is open to the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from replication.coordination.base import (
    Check,
    Create,
    Delete,
    EventKind,
    Op,
    OpResult,
    Set,
    check_op,
    parent_of,
)
from replication.coordination.errors import (
    BadVersionError,
    CoordinationError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from replication.coordination.served import jute
from replication.coordination.served.database import TreeDatabase
from replication.coordination.tree import Change, Stat, TreeChange
from replication.coordination.watches import Watches, WatchMode


class OpCode(IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN_2 = 12
    CHECK = 13
    MULTI = 14
    CREATE_2 = 15
    REMOVE_WATCHES = 18
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    SET_WATCHES_2 = 105
    ADD_WATCH = 106
    CLOSE_SESSION = -11


# ZooKeeper's others, which are refused: setACL, reconfig, checkWatches, containers and nodes with a
# time to live, multiRead, getEphemerals, getAllChildrenNumber and whoAmI.
NOT_SERVED = frozenset((7, 16, 17, 19, 20, 21, 22, 103, 104, 107))


class KeeperCode(IntEnum):
    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    QUOTA_EXCEEDED = -125


class KeeperEvent(IntEnum):
    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Watcher(Protocol):
    """A connection of a session; its watches end with it."""

    @property
    def session_id(self) -> int: ...
    def send_event(self, event: KeeperEvent, path: str) -> None: ...


class RefusedError(Exception):
    """A request that is refused with a code."""

    def __init__(self, code: KeeperCode) -> None:
        super().__init__(code.name)
        self.code = code


_CODES: dict[type[CoordinationError], KeeperCode] = {
    NoNodeError: KeeperCode.NO_NODE,
    NodeExistsError: KeeperCode.NODE_EXISTS,
    BadVersionError: KeeperCode.BAD_VERSION,
    NotEmptyError: KeeperCode.NOT_EMPTY,
    NoChildrenForEphemeralsError: KeeperCode.NO_CHILDREN_FOR_EPHEMERALS,
}
_STAT = ("l", "l", "l", "l", "i", "i", "i", "l", "i", "i", "l")
_ACLS: jute.Layout = [("i", "s", "s")]
_OPEN = [(31, "world", "anyone")]  # all permissions
_CREATE: jute.Layout = ("s", "b", _ACLS, "i")
_WRITES: dict[int, jute.Layout] = {
    OpCode.CREATE: _CREATE,
    OpCode.CREATE_2: _CREATE,
    OpCode.DELETE: ("s", "i"),
    OpCode.SET_DATA: ("s", "b", "i"),
    OpCode.CHECK: ("s", "i"),
}
_MULTI_HEADER = ("i", "z", "i")  # opcode, whether it is the end, error
_ERROR_RESULT = -1
_LATER_FLAGS = (4, 5, 6)  # containers, and nodes with a time to live
_NEVER = Check("/", -2)  # takes the place of an operation that is invalid: never possible
_MODES = {0: WatchMode.PERSISTENT, 1: WatchMode.RECURSIVE}
_CHILDREN, _DATA, _ANY = 1, 2, 3  # the watches to remove


class Operations:
    """What requests do, and who hears of it.

    Args:
        max_watch_bytes: of one connection's watches, of each kind.
    """

    def __init__(self, database: TreeDatabase, max_watch_bytes: int) -> None:
        self._database = database
        self._max_watch_bytes = max_watch_bytes
        self._data_watches: Watches[Watcher] = Watches()  # of nodes that need not exist
        self._child_watches: Watches[Watcher] = Watches()

    def carry_out(self, client: Watcher, opcode: int, body: bytes) -> tuple[KeeperCode, bytes]:
        """The error code and the body of the answer, which is empty with an error."""
        try:
            if opcode in _WRITES and opcode != OpCode.CHECK:
                return KeeperCode.OK, self._write(client, opcode, body)
            if opcode == OpCode.MULTI:
                return KeeperCode.OK, self._multi(client, body)
            if opcode not in _REQUESTS:
                return KeeperCode.UNIMPLEMENTED, b""
            layout, method = _REQUESTS[opcode]
            fields, _ = jute.read(layout, body)
            return KeeperCode.OK, method(self, client, *fields)
        except (CoordinationError, RefusedError, ValueError) as error:
            return _code_of(error), b""

    def end_session(self, session_id: int) -> None:
        self._tell(self._database.end_session(session_id))

    def forget(self, client: Watcher) -> None:
        self._data_watches.forget(client)
        self._child_watches.forget(client)

    @property
    def watch_count(self) -> int:
        return len(self._data_watches) + len(self._child_watches)

    # --- writes

    def _write(self, client: Watcher, opcode: int, body: bytes) -> bytes:
        fields, _ = jute.read(_WRITES[opcode], body)
        stats: list[Stat | None] = []
        (result,) = self._execute(client, [_op_of(opcode, fields)], stats)
        return _result(opcode, result, stats[0])

    def _multi(self, client: Watcher, body: bytes) -> bytes:
        opcodes, ops, invalid = _read_multi(body)
        stats: list[Stat | None] = []
        try:
            results = self._execute(client, ops, stats)
        except CoordinationError as error:
            # Those before were possible, and those behind were not looked at.
            failed = len(stats)
            codes = [KeeperCode.OK] * failed
            codes.append(
                _code_of(error if invalid is None or ops[failed] is not _NEVER else invalid)
            )
            codes += [KeeperCode.RUNTIME_INCONSISTENCY] * (len(opcodes) - failed - 1)
            answers = [_multi_answer(_ERROR_RESULT, code, jute.write("i", code)) for code in codes]
        else:
            answers = [
                _multi_answer(opcode, KeeperCode.OK, _result(opcode, result, stat))
                for opcode, result, stat in zip(opcodes, results, stats, strict=True)
            ]
        return b"".join((*answers, jute.write(_MULTI_HEADER, (-1, True, -1))))

    def _execute(
        self, client: Watcher, ops: Sequence[Op], stats: list[Stat | None]
    ) -> list[OpResult]:
        results, changes = self._database.execute(ops, client.session_id, stats)
        self._tell(changes)
        return results

    def _tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if not isinstance(change, TreeChange):
                continue
            path = change.path
            event = _EVENTS[change.kind]
            told = self._data_watches.fire(path)
            for client in told:
                client.send_event(event, path)
            if event is KeeperEvent.DATA_CHANGED:
                continue
            if event is KeeperEvent.DELETED:
                for client in self._child_watches.fire_own(path):
                    if client not in told:
                        client.send_event(event, path)
            parent = parent_of(path)
            for client in self._child_watches.fire_own(parent):
                client.send_event(KeeperEvent.CHILDREN_CHANGED, parent)

    # --- reads

    def _stat(self, path: str) -> Stat:
        stat = self._database.tree.stat(path)
        if stat is None:
            raise NoNodeError(path)
        return stat

    def _exists(self, client: Watcher, path: str, watch: bool) -> bytes:
        if watch:  # also of a node that is not there
            self._watch(client, path, WatchMode.ONCE, self._data_watches)
        return jute.write(_STAT, self._stat(path))

    def _get_data(self, client: Watcher, path: str, watch: bool) -> bytes:
        stat = self._stat(path)
        if watch:
            self._watch(client, path, WatchMode.ONCE, self._data_watches)
        data = self._database.tree.entries[path].node.data
        return jute.write(("b", _STAT), (data, stat))

    def _get_acl(self, client: Watcher, path: str) -> bytes:
        return jute.write((_ACLS, _STAT), (_OPEN, self._stat(path)))

    def _get_children(self, client: Watcher, path: str, watch: bool) -> bytes:
        self._stat(path)
        if watch:
            self._watch(client, path, WatchMode.ONCE, self._child_watches)
        return jute.write(["s"], self._database.tree.children(path))

    def _get_children_2(self, client: Watcher, path: str, watch: bool) -> bytes:
        children = self._get_children(client, path, watch)
        return children + jute.write(_STAT, self._stat(path))

    def _sync(self, client: Watcher, path: str) -> bytes:
        return jute.write("s", path)

    # --- watches

    def _watch(
        self, client: Watcher, path: str, mode: WatchMode, *tables: Watches[Watcher]
    ) -> None:
        for table in tables:
            if table.bytes_of(client) > self._max_watch_bytes:
                raise RefusedError(KeeperCode.QUOTA_EXCEEDED)
            table.add(client, path, mode)

    def _add_watch(self, client: Watcher, path: str, mode: int) -> bytes:
        if mode not in _MODES:
            raise RefusedError(KeeperCode.MARSHALLING_ERROR)
        self._watch(client, path, _MODES[mode], self._data_watches, self._child_watches)
        return jute.write("i", KeeperCode.OK)

    def _remove_watches(self, client: Watcher, path: str, kind: int) -> bytes:
        if kind not in (_CHILDREN, _DATA, _ANY):
            raise RefusedError(KeeperCode.MARSHALLING_ERROR)
        found = 0
        for bit, table in ((_CHILDREN, self._child_watches), (_DATA, self._data_watches)):
            found += bool(kind & bit) and table.remove(client, path)
        if not found:
            raise RefusedError(KeeperCode.NO_WATCHER)
        return b""

    def _set_watches(
        self,
        client: Watcher,
        seen_zxid: int,
        data: list[str],
        exist: list[str],
        children: list[str],
        persistent: Sequence[str] = (),
        recursive: Sequence[str] = (),
    ) -> bytes:
        """Watches of an earlier connection, which may have missed what came after a transaction."""
        for paths, table in ((data, self._data_watches), (children, self._child_watches)):
            for path in paths:
                stat = self._database.tree.stat(path)
                if stat is None:
                    client.send_event(KeeperEvent.DELETED, path)
                elif table is self._data_watches and stat.mzxid > seen_zxid:
                    client.send_event(KeeperEvent.DATA_CHANGED, path)
                elif table is self._child_watches and stat.pzxid > seen_zxid:
                    client.send_event(KeeperEvent.CHILDREN_CHANGED, path)
                else:
                    self._watch(client, path, WatchMode.ONCE, table)
        for path in exist:
            if self._database.tree.stat(path) is not None:
                client.send_event(KeeperEvent.CREATED, path)
            else:
                self._watch(client, path, WatchMode.ONCE, self._data_watches)
        for paths_of_mode, mode in ((persistent, _MODES[0]), (recursive, _MODES[1])):
            for path in paths_of_mode:
                self._watch(client, path, mode, self._data_watches, self._child_watches)
        return b""


class _Request(NamedTuple):
    layout: jute.Layout
    method: Callable[..., bytes]


_PATHS: jute.Layout = ["s"]
_REQUESTS: dict[int, _Request] = {
    OpCode.EXISTS: _Request(("s", "z"), Operations._exists),
    OpCode.GET_DATA: _Request(("s", "z"), Operations._get_data),
    OpCode.GET_ACL: _Request(("s",), Operations._get_acl),
    OpCode.GET_CHILDREN: _Request(("s", "z"), Operations._get_children),
    OpCode.GET_CHILDREN_2: _Request(("s", "z"), Operations._get_children_2),
    OpCode.SYNC: _Request(("s",), Operations._sync),
    OpCode.ADD_WATCH: _Request(("s", "i"), Operations._add_watch),
    OpCode.REMOVE_WATCHES: _Request(("s", "i"), Operations._remove_watches),
    OpCode.SET_WATCHES: _Request(("l", _PATHS, _PATHS, _PATHS), Operations._set_watches),
    OpCode.SET_WATCHES_2: _Request(
        ("l", _PATHS, _PATHS, _PATHS, _PATHS, _PATHS), Operations._set_watches
    ),
}
_EVENTS = {
    EventKind.CREATED: KeeperEvent.CREATED,
    EventKind.DELETED: KeeperEvent.DELETED,
    EventKind.CHANGED: KeeperEvent.DATA_CHANGED,
}


def _code_of(error: Exception) -> KeeperCode:
    if isinstance(error, RefusedError):
        return error.code
    if isinstance(error, jute.JuteError):
        return KeeperCode.MARSHALLING_ERROR
    return _CODES.get(type(error), KeeperCode.BAD_ARGUMENTS)  # type: ignore[arg-type]


def _op_of(opcode: int, fields: Sequence[Any]) -> Op:
    """
    Raises:
        RefusedError, ValueError: it is invalid, whatever is in the tree.
    """
    op: Op
    if opcode in (OpCode.CREATE, OpCode.CREATE_2):
        path, data, acls, flags = fields
        if not 0 <= flags <= 3:
            refused = flags in _LATER_FLAGS
            raise RefusedError(KeeperCode.UNIMPLEMENTED if refused else KeeperCode.BAD_ARGUMENTS)
        if not acls:
            raise RefusedError(KeeperCode.INVALID_ACL)
        op = Create(path, data, bool(flags & 1), bool(flags & 2))
    elif opcode == OpCode.SET_DATA:
        op = Set(*fields)
    else:
        op = Delete(*fields) if opcode == OpCode.DELETE else Check(*fields)
        if opcode == OpCode.DELETE and op.path == "/":
            raise RefusedError(KeeperCode.BAD_ARGUMENTS)
    check_op(op)
    return op


def _read_multi(body: bytes) -> tuple[list[int], list[Op], Exception | None]:
    """Opcodes and operations. The first invalid one is the last, as one that is never possible;
    then why is there too.

    Raises:
        JuteError
    """
    opcodes: list[int] = []
    ops: list[Op] = []
    invalid: Exception | None = None
    (opcode, is_end, _), position = jute.read(_MULTI_HEADER, body)
    while not is_end:
        if opcode not in _WRITES:
            raise jute.JuteError(f"opcode {opcode} in a transaction")
        fields, position = jute.read(_WRITES[opcode], body, position)
        # ZooKeeper's transactions answer the second kind of creation as the first.
        opcodes.append(OpCode.CREATE if opcode == OpCode.CREATE_2 else opcode)
        if invalid is None:
            try:
                ops.append(_op_of(opcode, fields))
            except (RefusedError, ValueError) as error:
                invalid = error
                ops.append(_NEVER)
        (opcode, is_end, _), position = jute.read(_MULTI_HEADER, body, position)
    return opcodes, ops, invalid


def _result(opcode: int, result: OpResult, stat: Stat | None) -> bytes:
    if opcode == OpCode.CREATE:
        return jute.write("s", result)
    if opcode == OpCode.CREATE_2:
        return jute.write(("s", _STAT), (result, stat))
    return jute.write(_STAT, stat) if opcode == OpCode.SET_DATA else b""


def _multi_answer(opcode: int, code: KeeperCode, result: bytes) -> bytes:
    return jute.write(_MULTI_HEADER, (opcode, False, code)) + result
