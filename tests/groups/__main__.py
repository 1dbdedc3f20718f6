"""``python -m tests.groups --seeds N``: search histories in which a group breaks a promise."""

from __future__ import annotations

import sys

from tests.groups.search import run
from tests.support.seeds import main

if __name__ == "__main__":
    sys.exit(main("python -m tests.groups", __doc__, run))
