"""From a seed to a verdict: draw a plan, run it, shrink a failing one.

Begin with ``run``, which is one schedule. ``plan_generator`` draws plans, ``search`` runs many,
``shrink`` makes a failing one small.
"""

__all__ = ["plan_generator", "run", "search", "shrink"]
