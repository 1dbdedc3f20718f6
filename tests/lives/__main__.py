"""``python -m tests.lives --seeds N``: search for something that outlives its log."""

from __future__ import annotations

import sys

from tests.lives.search import run
from tests.support.seeds import main

if __name__ == "__main__":
    sys.exit(main("python -m tests.lives", __doc__, run))
