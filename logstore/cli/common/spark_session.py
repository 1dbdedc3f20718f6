"""A Spark session for a command: ``--spark MASTER``, ``--conf KEY=VALUE``."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logstore.cli.common.exits import fail
from logstore.cli.common.options import parse_pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own messages do not belong beside a report; --conf brings them back. Its errors come as
# exceptions, too.
_QUIET = {"spark.log.level": "FATAL", "spark.ui.showConsoleProgress": "false"}

_STACK = "\n\tat "  # of the JVM


@contextmanager
def spark_session(master: str, conf: Sequence[str], name: str) -> Iterator[SparkSession]:
    """The session of the command ``name``, which ends with it. What Spark raises is one line."""
    from logstore.spark import session as open_session

    settings = _QUIET | parse_pairs(tuple(conf), "--conf")
    with _nothing_logged():
        session = open_session(master, app_name=name, conf=settings)
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield session
        except (PySparkException, Py4JError) as error:
            fail(sentence_of(error) or f"Spark: {str(error).partition(_STACK)[0]}")
        finally:
            session.stop()


def sentence_of(error: Exception) -> str:
    """What our source says in an error of Spark; "" if it is not ours."""
    found = re.search(r"\blogstore cannot be \w+:\s(.*)", str(error))
    return found[1] if found else ""


@contextmanager
def _nothing_logged() -> Iterator[None]:
    """Mute the logs of PySpark and py4j, which add pages of tracebacks after Ctrl-C."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


__all__ = ["sentence_of", "spark_session"]
