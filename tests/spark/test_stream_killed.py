"""Two drivers of streaming queries that are killed (``tests.spark.stream_killed``)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.spark import stream_killed

pytestmark = pytest.mark.slow


def test_a_killed_driver_costs_no_record_and_doubles_none(tmp_path: Path) -> None:
    """One checkpoint, whatever the trigger: the last driver finds what both have left."""
    stream_killed.run(5, tmp_path, ["processingTime", "availableNow"], print)


def test_what_a_sink_lacks_or_has_twice_is_told() -> None:
    """The check itself."""
    wanted = Counter("abc")
    stream_killed.compare("parquet", wanted, Counter("cab"))
    for found in ("ab", "aabc"):
        with pytest.raises(stream_killed.Failure, match=r"1 missing|1 too many"):
            stream_killed.compare("parquet", wanted, Counter(found))
