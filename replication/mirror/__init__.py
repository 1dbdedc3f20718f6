"""Mirrors of clusters, and what becomes of them.

``promote`` makes a cluster of a mirror; ``endings`` decides how its open transactions end.
"""

from __future__ import annotations

from replication.mirror.endings import Ending, Why
from replication.mirror.promote import Promotion, PromotionRules, promote
from replication.mirror.server_properties import Listeners

__all__ = [
    "Ending",
    "Listeners",
    "Promotion",
    "PromotionRules",
    "Why",
    "promote",
]
