"""A client of Spark Connect, which is a process of its own: it has no JVM.

    python -m tests.spark.connect_job URL DIRECTORY ROOT

asks about the log directory DIRECTORY and writes the answers to ROOT/answers.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logstore.common.errors import ConfigError
from logstore.spark import map_batches, register, session, verify_on_spark, workers
from tests.spark.questions import reading, streaming, writing


def answers(url: str, directory: str, root: Path) -> dict[str, Any]:
    spark = session(url)
    register(spark)
    frame = spark.read.format("logstore").load(directory)
    same = map_batches(spark, lambda them: them, "offset bigint", directory, columns="offset")
    return {
        "reading": reading(spark, [directory]),
        "plan": frame._explain_string(),
        "by rows": spark.read.format("logstore-python").load(directory).count(),
        "streaming": streaming(spark, directory, root / "checkpoint"),
        "writing": writing(spark, directory, root / "written"),
        "batches": same.count(),
        "refusals": [
            refusal(lambda: verify_on_spark(spark, directory)),
            refusal(lambda: workers(spark)),
        ],
    }


def refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    root = Path(sys.argv[3])
    (root / "answers.json").write_text(json.dumps(answers(sys.argv[1], sys.argv[2], root)))
