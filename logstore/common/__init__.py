"""Types, errors, configuration, and the seams for time and randomness, which every room may use.

Begin with ``errors``: the class of an error says what a caller does next. ``locks`` has the one
order in which the locks of a log are taken. Nothing here may import another room of ``logstore``.
"""

__all__ = [
    "bounds",
    "clock",
    "config",
    "disk_errors",
    "errors",
    "extras",
    "forks",
    "interrupts",
    "json_fields",
    "locks",
    "parallel",
    "partitioner",
    "random_id",
    "shield",
    "siblings",
    "suggestions",
    "types",
    "version",
]
