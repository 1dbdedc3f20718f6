"""The process of a broker or of an engine, below a supervisor that it does not outlive.

    python -P child.py logstore ARGUMENT…            ``logstore ARGUMENT…``, in this process
    python -P child.py zookeeper PORT COMMAND…       the command, and a line when it serves

Standard input is a pipe of which nothing comes but its end, when nobody is left who could stop
this process: however the supervisor ended, and on whichever system (X-35). Then it stops as by
SIGTERM, within ``GRACE_S``. The supervisor alone has the other end of the brokers' pipe. That of an
engine is in the brokers, too, so it goes after the last of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GRACE_S = 30.0
POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


def on_orphaned(stop: Callable[[int], object]) -> None:
    """Call ``stop`` with SIGTERM when standard input has ended, and with SIGKILL later."""

    def watch() -> None:
        ending = select.poll()  # no read: the interpreter may end during it
        ending.register(0, select.POLLIN | select.POLLHUP)
        ending.poll()
        stop(signal.SIGTERM)
        threading.Event().wait(GRACE_S)
        stop(signal.SIGKILL)

    threading.Thread(target=watch, name="orphaned", daemon=True).start()


def logstore(arguments: list[str]) -> None:
    on_orphaned(lambda number: os.kill(os.getpid(), number))
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    from logstore.__main__ import run

    run(arguments)


def zookeeper(port: int, command: list[str]) -> int:
    """The parent of a JVM, which cannot watch its standard input itself. Were this process killed,
    the kernel would kill the JVM (Linux)."""
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=_dying_with_parent()
    )
    on_orphaned(server.send_signal)
    signal.signal(signal.SIGTERM, lambda number, frame: server.send_signal(number))
    sys.path.append(ROOT)
    from logstore import terminal
    from replication.supervisor.zookeeper import serves

    while not serves(port):
        try:
            return server.wait(POLL_S)
        except subprocess.TimeoutExpired:
            continue
    terminal.line(json.dumps({"coordinator": f"zookeeper://127.0.0.1:{port}"}))
    terminal.flush()
    return server.wait()


def _dying_with_parent() -> Callable[[], object] | None:
    """What a child calls before its program, where the system has it. The thread that forks is the
    main one, which lives as long as its process."""
    import ctypes  # of a JVM's parent alone

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return None if prctl is None else lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "logstore":
        logstore(rest)
    else:
        code = zookeeper(int(rest[0]), rest[1:])
        if code < 0:  # a signal, by which this process ends, too
            os.kill(os.getpid(), -code)
        sys.exit(code)
