"""``python -m tests.cleaner --seeds N``: search histories in which the cleaner loses something."""

from __future__ import annotations

import sys

from tests.cleaner.search import run
from tests.support.seeds import main

if __name__ == "__main__":
    sys.exit(main("python -m tests.cleaner", __doc__, run))
