"""``python -m tests.fuzz.connections --seed S --rounds N``: hostile clients of a whole server.

Each round, a few connections send what no client sends: random bytes, HTTP, a TLS hello, frames cut
short, real requests changed in a few places, keys and versions that are not served, lengths and
counts out of all bounds. Each connection is answered by whole frames, or closed; another client is
served all the time; in the end memory, descriptors and threads are as before.

``--crowd`` asks instead how much memory many connections take of a server in a process of its own:
5,000 that are idle, and 1,000 that announce 100 MiB each and send 1 KiB of it.
"""

from __future__ import annotations

import argparse
import random
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

import psutil

from replication.protocol import SERVED, ApiKey, encode_request, request_header, schema
from replication.protocol import messages as wire
from replication.server.serving import serve
from tests.support.protocol_values import draw
from tests.support.until import until

TIMEOUT_S = 60.0
QUIET_S = 0.02  # a connection that sends nothing for so long has said all it will
MAX_FRAME = 100 << 20
Address = tuple[str, int]


def real_request(rng: random.Random) -> bytes:
    key = rng.choice(list(SERVED))
    version = rng.randint(SERVED[key].first, SERVED[key].last)
    body = encode_request(draw(schema.APIS[key].name + "Request", version, rng), version)
    return request_header(key, version, rng.getrandbits(31), rng.choice([None, "", "fuzz"])) + body


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def mutated(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.getrandbits(8)])
            case 1:
                data[at : at + rng.choice([2, 4, 8])] = rng.choice(
                    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4)]
                )
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                del data[at:]
    return bytes(data)


def hostile_bytes(rng: random.Random) -> bytes:
    match rng.randrange(9):
        case 0:
            return rng.randbytes(rng.randint(1, 2000))
        case 1:
            return b"GET /metrics HTTP/1.1\r\nHost: kafka\r\n\r\n"
        case 2:
            return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500)
        case 3:  # a length out of bounds
            return struct.pack(">i", rng.choice([0, -1, -(1 << 31), MAX_FRAME + 1, (1 << 31) - 1]))
        case 4:  # a frame that does not end
            return struct.pack(">i", rng.randint(1000, MAX_FRAME)) + real_request(rng)[:900]
        case 5:  # no such API, or no such version
            header = struct.pack(">hhih", rng.choice([-1, 4, 67, 999]), 0, 1, -1)
            known = struct.pack(">hhih", rng.choice(list(SERVED)), rng.choice([-1, 99]), 1, -1)
            return framed(rng.choice([header, known]))
        case 6:
            return framed(mutated(rng, real_request(rng)))
        case 7:  # many at once, and the last one bad
            good = b"".join(framed(api_versions(n)) for n in range(rng.randint(1, 50)))
            return good + framed(mutated(rng, real_request(rng)))
        case _:
            return mutated(rng, framed(real_request(rng)))


def api_versions(correlation_id: int) -> bytes:
    body = encode_request(wire.ApiVersionsRequest("fuzz", "1"), 3)
    return request_header(ApiKey.API_VERSIONS, 3, correlation_id, "fuzz") + body


def attack(rng: random.Random, address: Address) -> None:
    """One hostile connection, in random pieces, until it is closed or there is silence."""
    with socket.create_connection(address, TIMEOUT_S) as connected:
        data = hostile_bytes(rng)
        with suppress(OSError):
            while data:
                cut = rng.choice([1, 3, 50, len(data)])
                connected.sendall(data[:cut])
                data = data[cut:]
            if rng.random() < 0.5:
                connected.shutdown(socket.SHUT_WR)
        answers = bytearray()
        with suppress(ConnectionError):
            while select.select([connected], [], [], QUIET_S)[0]:
                piece = connected.recv(1 << 16)
                if not piece:
                    break
                answers += piece
        check_frames(answers)


def check_frames(answers: bytearray) -> None:
    """Whole frames, and at most the beginning of one more."""
    while len(answers) >= 4:
        (size,) = struct.unpack_from(">i", answers)
        assert 4 <= size <= MAX_FRAME, size
        del answers[: 4 + size]


def ping(connected: socket.socket, correlation_id: int) -> None:
    """The other client, which is served whatever happens."""
    connected.sendall(framed(api_versions(correlation_id)))
    answer = b""
    while len(answer) < 8 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
        piece = connected.recv(1 << 16)
        assert piece, "an honest client was closed"
        answer += piece
    assert struct.unpack_from(">i", answer, 4)[0] == correlation_id


def run(address: Address, seeds: range) -> None:
    with socket.create_connection(address, TIMEOUT_S) as honest:
        for seed in seeds:
            rng = random.Random(seed)
            try:
                attack(rng, address)
                ping(honest, seed & 0x7FFF_FFFF)
            except BaseException:
                print(f"Repeat it with: python -m tests.fuzz.connections --seed {seed} --rounds 1")
                raise


# ------------------------------------------------------------------------------------- crowds


class Crowd(NamedTuple):
    """Bytes that a crowd took in the server's process."""

    idle: int
    announcing: int


_SERVER = """
import sys
from replication.server.serving import serve
with serve() as kafka:
    print(kafka.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def crowd(idle: int, announcing: int) -> Crowd:
    """Let ``idle`` connections ask once and stay, then let ``announcing`` ones send a large
    frame's first KiB.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        host, port = server.stdout.readline().strip().rsplit(":", 1)
        address = (host, int(port))
        process = psutil.Process(server.pid)
        with ExitStack() as stack:

            def connect() -> socket.socket:
                return stack.enter_context(socket.create_connection(address, TIMEOUT_S))

            honest = connect()
            ping(honest, 0)
            before = process.memory_info().rss
            for n in range(idle):
                ping(connect(), n)
            with_idle = process.memory_info().rss
            beginning = struct.pack(">i", MAX_FRAME) + real_produce(1020)
            for n in range(announcing):
                connect().sendall(beginning)
                ping(honest, n)
            until_received(process, 1 + idle + announcing)
            ping(honest, 1)
            return Crowd(with_idle - before, process.memory_info().rss - with_idle)
    finally:
        server.stdin.close()
        server.wait(TIMEOUT_S)
        server.stdout.close()


def real_produce(size: int) -> bytes:
    header = request_header(ApiKey.PRODUCE, 9, 1, "fuzz")
    return header + bytes(size - len(header))


def until_received(process: psutil.Process, connections: int) -> None:
    until(lambda: process.num_fds() >= connections, "the server has accepted them all")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.connections", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--crowd", action="store_true")
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--announcing", type=int, default=1000)
    args = parser.parse_args()
    if args.crowd:
        taken = crowd(args.idle, args.announcing)
        print(
            f"{args.idle} idle connections: {taken.idle / 2**20:.1f} MiB; "
            f"{args.announcing} that announce 100 MiB: {taken.announcing / 2**20:.1f} MiB"
        )
        return
    started = time.monotonic()
    with serve() as kafka:
        host, port = kafka.bootstrap_servers.rsplit(":", 1)
        run((host, int(port)), range(args.seed, args.seed + args.rounds))
    print(f"{args.rounds} rounds, {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
