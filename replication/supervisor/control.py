"""Another shell's way to a running supervisor: a Unix socket in the cluster's directory.

A line of JSON each way. Whoever may write to the socket (mode 0600: its owner) may ask. One
connection at a time changes something: the first that did keeps that right until it is closed, so
two rolling restarts never meet.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn, Self

from checkpoints.files import OsFiles
from logstore.common.errors import ConfigError, LogstoreError
from replication.supervisor.cluster_file import BrokerEntry
from replication.supervisor.processes import Child, ChildState
from replication.supervisor.supervisor import Supervisor

SOCKET = "control.sock"
LINE_MAX = 1 << 16
CONNECTIONS_MAX = 16
ANSWER_S = 5.0  # to what is answered at once
_PATH_MAX = 100  # of the address of a Unix socket: 108 on Linux, 104 elsewhere


class ControlError(LogstoreError):
    """The supervisor refused, or has ended."""


@contextmanager
def _address(directory: str) -> Iterator[str]:
    """The socket's path. One that is too long is given from inside the directory."""
    path = os.path.join(directory, SOCKET)
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield path
        return
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield SOCKET
    finally:
        os.chdir(before)


class _Connection:
    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.received = b""
        self.awaits: Child | None = None
        """It is answered when this process is ready, has stopped for good or was given up."""
        self.removes: int | None = None


class ControlServer:
    """Serves on the thread of the supervisor. Use it as a context manager around its ``run``."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._connections: list[_Connection] = []
        self._changing: _Connection | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            with _address(supervisor.directory) as path:
                with suppress(FileNotFoundError):
                    OsFiles().remove(path)  # of a supervisor that was killed: its lock is ours
                self._listener.bind(path)
        finally:
            os.umask(before)
        self._listener.listen(CONNECTIONS_MAX)
        self._listener.setblocking(False)
        supervisor.register(self._listener, self._accept)
        supervisor.on_change = self._on_change

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()
        for each in self._connections:
            each.peer.close()
        with _address(self._supervisor.directory) as path, suppress(FileNotFoundError):
            OsFiles().remove(path)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            peer.close()
            return
        peer.setblocking(False)
        connection = _Connection(peer)
        self._connections.append(connection)
        self._supervisor.register(peer, partial(self._receive, connection))

    def _close(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._supervisor.unregister(connection.peer)
        connection.peer.close()
        self._connections.remove(connection)
        if self._changing is connection:
            self._changing = None

    def _receive(self, connection: _Connection) -> None:
        try:
            more = connection.peer.recv(LINE_MAX)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        connection.received += more
        line, end, rest = connection.received.partition(b"\n")
        if not more or len(line) > LINE_MAX or (end and (rest or connection.awaits)):
            self._close(connection)  # it has gone, or does not wait for its answer
            return
        if not end:
            return
        connection.received = b""
        try:
            asked = json.loads(line)
            if not isinstance(asked, dict):
                raise ControlError("no object")
            answer = self._answer(connection, asked)
        except (ValueError, TypeError, KeyError, RecursionError, OSError, LogstoreError) as error:
            answer = {"error": str(error) or type(error).__name__}
        if answer is not None:
            self._send(connection, answer)

    def _send(self, connection: _Connection, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        try:
            if connection.peer.send(data) < len(data):  # it does not read
                self._close(connection)
        except OSError:
            self._close(connection)

    # -- what may be asked ---------------------------------------------------------------------

    def _answer(self, connection: _Connection, asked: dict[str, Any]) -> dict[str, Any] | None:
        match asked.get("do"):
            case "status":
                return self._status()
            case "stop":
                if not self._supervisor.is_stopping:  # a second one would stop all at once
                    self._supervisor.stop()
                return {}
            case "restart":
                child = self._may_change(connection, int(asked["broker"]))
                self._supervisor.restart(int(asked["broker"]))
            case "add":
                child = self._add(connection, asked["entry"])
            case "remove":
                broker_id = int(asked["broker"])
                child = self._may_change(connection, broker_id)
                if len(self._supervisor.brokers) == 1:
                    raise ControlError(f"broker {broker_id} is the last one")
                self._supervisor.stop_broker(broker_id)
                connection.removes = broker_id
            case "begin":
                self._take(connection)
                return {}
            case other:
                raise ControlError(f"no such request: {other!r}")
        connection.awaits = child
        self._on_change(child)  # it may have failed, or have been stopped, before
        return None

    def _status(self) -> dict[str, Any]:
        supervisor = self._supervisor
        return {
            "pid": os.getpid(),
            "stopping": supervisor.is_stopping,
            "processes": [
                {
                    "name": each.name,
                    "state": each.state.value,
                    "pid": each.pid,
                    "deaths": each.deaths,
                    "reason": each.said,
                }
                for each in (*supervisor.engine, *supervisor.brokers.values())
            ],
        }

    def _take(self, connection: _Connection) -> None:
        if self._supervisor.is_stopping:
            raise ControlError("the cluster is being stopped")
        if self._changing not in (None, connection):
            raise ControlError("another command is changing this cluster; it has to end first")
        self._changing = connection

    def _may_change(self, connection: _Connection, broker_id: int) -> Child:
        self._take(connection)
        if broker_id not in self._supervisor.brokers:
            raise ControlError(f"there is no broker {broker_id}")
        return self._supervisor.brokers[broker_id]

    def _add(self, connection: _Connection, fields: dict[str, Any]) -> Child:
        self._take(connection)
        fields["config_files"] = tuple(fields["config_files"])
        entry = BrokerEntry(**fields)
        if entry.broker_id in self._supervisor.brokers:
            raise ControlError(f"there is a broker {entry.broker_id}")
        self._supervisor.add(entry)
        return self._supervisor.brokers[entry.broker_id]

    def _on_change(self, child: Child) -> None:
        for connection in [each for each in self._connections if each.awaits is child]:
            if connection.removes is not None and not child.state.is_alive:
                answer: dict[str, Any] = {}
                try:
                    self._supervisor.forget(connection.removes)
                except OSError as error:  # a full disk: it may be asked for again
                    answer = {"error": str(error)}
                connection.removes = connection.awaits = None
                self._send(connection, answer)
            elif child.state is ChildState.READY and connection.removes is None:
                connection.awaits = None
                self._send(connection, {"pid": child.pid})
            elif child.state is ChildState.FAILED:
                connection.awaits = connection.removes = None
                self._send(connection, {"error": f"{child.name}: {child.said}"})


class ControlClient:
    """A connection to the supervisor of a directory. Use it as a context manager.

    Raises:
        ConfigError: no supervisor runs there.
    """

    def __init__(self, directory: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        self._received = b""
        try:
            with _address(directory) as path:
                self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise ConfigError(
                    f"{directory}: no cluster runs there; `logstore cluster --dir` starts it"
                ) from None
            if isinstance(error, BlockingIOError):  # so many wait for it that no more may
                _ended("does not answer")
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """The answer, when what was asked for has happened.

        Raises:
            ControlError
        """
        self._socket.settimeout(ANSWER_S if do in ("status", "begin", "stop") else None)
        try:
            self._socket.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
            while b"\n" not in self._received:
                more = self._socket.recv(LINE_MAX)
                if not more:
                    _ended()
                self._received += more
        except ConnectionError:
            _ended()
        except TimeoutError:
            _ended("does not answer")
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ControlError(str(answer["error"]))
        return answer

    def add(self, entry: BrokerEntry) -> dict[str, Any]:
        return self.ask("add", entry=asdict(entry) | {"config": dict(entry.config)})

    def wait_for_end(self) -> None:
        """Until the supervisor has ended."""
        self._socket.settimeout(None)
        with suppress(OSError):
            while self._socket.recv(LINE_MAX):
                pass


def _ended(what: str = "has ended") -> NoReturn:
    raise ControlError(f"the supervisor {what}")
