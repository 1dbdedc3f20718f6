"""Random histories: everything of one follows from its seed, and a plain model says what must hold.

Each module has a function ``run`` from a seed to a ``Run``. ``python -m tests.histories NAME``
searches thousands of seeds, ``test_histories`` a few.
"""
