"""What a supervisor starts, in place of brokers and a coordinator: it keeps their contract, and
nothing else.

A line of JSON when it is ready, SIGTERM ends it, ``/ready`` and ``/state`` are what the files
``ready.json`` and ``state.json`` in its directory say. The directory above has ``events``: what
began and ended, in order. Configuration for tests: ``stub.exit`` (the code it ends with instead of
getting ready), ``stub.deaf`` (SIGTERM does nothing), ``stub.quiet`` (it never gets ready).
"""

import json
import os
import select
import signal
import socket
import sys


def run(arguments):
    options, config = {}, {}
    for each in arguments[1:]:
        key, _, value = each.removeprefix("--").partition("=")
        if key == "config":
            name, _, value = value.partition("=")
            config[name] = value
        else:
            options[key] = value
    directory = options["dir"]
    me = options.get("broker-id", arguments[0])

    def event(what):
        with open(os.path.join(os.path.dirname(directory), "events"), "a") as file:
            file.write(f"{what} {me}\n")

    wake, there = socket.socketpair()
    there.setblocking(False)
    signal.set_wakeup_fd(there.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    event("began")
    with open(os.path.join(os.path.dirname(directory), f"arguments-{me}"), "w") as file:
        json.dump({"arguments": arguments, "environment": dict(os.environ)}, file)
    if "stub.exit" in config:
        print(f"error: the stub ends with {config['stub.exit']}", file=sys.stderr)
        sys.exit(int(config["stub.exit"]))
    if arguments[0] == "coordinator":
        where, ready = options["listen"], {"coordinator": f"zookeeper://{options['listen']}"}
    else:
        where = options["http"]
        first = options["listen"].split(",")[0].rpartition("://")[2]
        ready = {"brokerId": int(me), "bootstrapServers": [first], "http": f"http://{where}/"}
    host, _, port = where.rpartition(":")
    server = socket.create_server((host, int(port)))
    if "stub.quiet" not in config:
        print(json.dumps(ready), flush=True)
    while True:
        readable, _, _ = select.select([wake, server], [], [])
        if server in readable:
            answer(server, directory)
        if wake in readable:
            wake.recv(64)
            if "stub.deaf" not in config:
                break
            event("asked")
    event("ended")


def answer(server, directory):
    with server.accept()[0] as peer:
        path = peer.recv(4096).split(b" ")[1].decode().strip("/")
        try:
            with open(os.path.join(directory, f"{path}.json")) as file:
                found = json.load(file)
        except FileNotFoundError:
            found = {"brokers": [{}], "partitions": []}
        body = json.dumps(found).encode()
        status = b"503 Unavailable" if found.get("ready") is False else b"200 OK"
        peer.sendall(
            b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )
