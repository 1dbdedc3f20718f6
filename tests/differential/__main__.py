"""The same sequences of requests to a real Kafka and to a broker of ours.

python -m tests.differential --seconds 60 --seed 1 --kind transactions
python -m tests.differential --seeds 10000 --seconds 36000

A difference is shrunk to the steps that it takes, and printed with the places where the answers
part. What may differ is in ``rules``, each with its reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.clients.servers import running
from tests.differential import transcripts
from tests.differential.broker import NODE, Broker
from tests.differential.comparison import OUR_SETTINGS, SETTINGS
from tests.differential.search import KINDS, Roots, Search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--record", action="store_true", help="keep those without a difference")
    parser.add_argument("--records", action="store_true", help="compare internal topics, too")
    parser.add_argument("--kafka", default="kafka", help="address of a Kafka that runs already")
    arguments = parser.parse_args()
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    with (
        tempfile.TemporaryDirectory() as directory,
        running(arguments.kafka, Path(directory, "kafka"), SETTINGS) as kafka_address,
        running("logstore", Path(directory, "logstore"), OUR_SETTINGS) as our_address,
    ):
        kafka, ours = Broker(kafka_address), Broker(our_address)
        for each in (kafka, ours):
            each.prepare()
        roots = None
        if arguments.records:
            own = Path(directory, "logstore", "data", f"broker-{NODE}")
            roots = Roots(Path(directory, "kafka", "kafka", "data"), own)
        search = Search(kafka, ours, roots)
        end = time.monotonic() + arguments.seconds
        count = 0
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            if time.monotonic() > end:
                break
            count += 1
            kind = kinds[seed % len(kinds)]
            run, told = search.run(kind, seed)
            for text in told:
                print(f"\n{text}", flush=True)
            if arguments.record and kind != "groups" and not run.differences:
                transcripts.DIRECTORY.mkdir(exist_ok=True)
                transcripts.write(transcripts.DIRECTORY / f"{kind}-{seed}.gz", run)
        kafka.close()
        ours.close()
    print(
        f"\n{count} sequences, {search.asked.total()} requests, {search.records} records, "
        f"{search.seen.total()} differences of {len(search.seen)} shapes, "
        f"{search.once.total()} that did not come again"
    )
    print(search.asked)
    return 1 if search.seen else 0


if __name__ == "__main__":
    sys.exit(main())
