"""Prints how many ms a fresh process takes to import, to serve, and to acknowledge a first record.

python bench/start_time.py DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time

BEGUN = time.perf_counter()

from replication.server.serving import serve  # noqa: E402

IMPORTED = time.perf_counter()


def main() -> None:
    from server_peers import RawClient, produce_frame

    begun = time.perf_counter()
    with serve(sys.argv[1]) as kafka:
        kafka.create_topic("t")
        with RawClient(int(kafka.bootstrap_servers.rpartition(":")[2])) as client:
            client.send(produce_frame("t", b"value"))
            client.receive()
        acknowledged = time.perf_counter()
    print(json.dumps({"import": IMPORTED - BEGUN, "serve": acknowledged - begun}))


if __name__ == "__main__":
    main()
