"""kcat, the command line over librdkafka: Debian's old one with Debian's old librdkafka."""

from __future__ import annotations

import json
import subprocess
import threading

import common

FORMAT = '{"v":"%s","k":"%k","p":%p,"o":%o,"t":%T}\\n'


def produce(bootstrap: str, step: common.Step) -> None:
    options = [f"compression.codec={step.get('codec', 'none')}", f"acks={step.get('acks', 'all')}"]
    if step.get("idempotent"):
        options.append("enable.idempotence=true")
    processes = []
    for partition in range(step["partitions"]):
        command = ["kcat", "-b", bootstrap, "-P", "-t", step["topic"], "-p", str(partition)]
        command += ["-K", ":", *(word for option in options for word in ("-X", option))]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0))
    values = []
    for key, value, partition, _ in common.records(step):
        processes[partition].stdin.write(f"{key}:{value}\n".encode())
        values.append(value)
        if "count" not in step:
            common.answer(sent=value)
    for process in processes:
        process.stdin.close()
        # It ends well only when all is acknowledged.
        if process.wait(60) != 0:
            raise SystemExit(f"kcat ended with {process.returncode}")
    for value in values:
        common.answer(acked=value)


def _shown(line: bytes) -> None:
    fields = json.loads(line)
    value, key = fields["v"].encode(), fields["k"].encode()
    common.read(value, key, fields["p"], fields["o"], fields["t"])


def read(bootstrap: str, step: common.Step) -> None:
    begin = f"s@{step['since_ms']}" if "since_ms" in step else "beginning"
    command = ["kcat", "-b", bootstrap, "-C", "-t", step["topic"], "-o", begin, "-e", "-q"]
    isolation = step.get("isolation", "read_uncommitted")
    command += ["-f", FORMAT, "-X", f"isolation.level={isolation}"]
    result = subprocess.run(command, capture_output=True, check=True, timeout=60)
    for line in result.stdout.splitlines():
        _shown(line)


def group(bootstrap: str, step: common.Step) -> None:
    command = ["kcat", "-b", bootstrap, "-u", "-f", FORMAT, "-X", "auto.offset.reset=earliest"]
    command += ["-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=300"]
    if "count" in step:
        command += ["-c", str(step["count"])]
    command += ["-G", step["group"], step["topic"]]
    until = common.Until(step)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:

        def assignments() -> None:
            for line in process.stderr:
                text = line.decode()
                if "assigned:" in text:
                    words = text.partition("assigned:")[2].split("[")[1:]
                    common.answer(assigned=sorted(int(word.partition("]")[0]) for word in words))

        def records() -> None:
            for line in process.stdout:
                _shown(line)
                until.took(1)

        threads = [threading.Thread(target=each) for each in (assignments, records)]
        for thread in threads:
            thread.start()
        while until.goes_on and process.poll() is None:
            threads[0].join(0.05)
        if "count" not in step:
            process.terminate()  # kcat commits and leaves the group
        for thread in threads:
            thread.join()


common.main({"produce": produce, "read": read, "group": group})
