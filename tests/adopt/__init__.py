"""Directories of real Kafkas, adopted by ``logstore serve --adopt``, beside the same Kafka.

``python -m tests.adopt --help``. In reading order: ``kafkas`` (which releases), ``histories`` (what
happened to a directory), ``reading`` (all that clients can see of a broker), ``comparison`` (what
may differ, and why).
"""

from __future__ import annotations

import sys
from pathlib import Path

_INTEROP = str(Path(__file__).resolve().parents[1] / "interop")  # imported without a package
if _INTEROP not in sys.path:
    sys.path.append(_INTEROP)
