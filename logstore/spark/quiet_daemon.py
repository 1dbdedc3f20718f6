"""Spark's daemon of Python workers, without a traceback where Spark has read enough.

``show``, ``take`` and ``limit`` close the connection to a worker that still has rows. That is no
error. Those that are reach Spark over the connection, or as a traceback like before.
"""

from __future__ import annotations

import socket

from pyspark import daemon

plain = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return plain(sock, authenticated)
    except ConnectionError:
        return 1


def run() -> None:
    """Fork workers until Spark closes stdin."""
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    run()
