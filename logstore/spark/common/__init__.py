"""Options, columns, filters and errors of the data source, and the values that the driver sends to
tasks.

Begin with ``options``, which has every option with its meaning, and ``columns``.
"""

__all__ = ["columns", "errors", "filters", "options", "parallel", "proof", "splits"]
