"""The parts that all checks share: the rules and their explanations, findings, digests of ranges.

Begin with ``rules``, the table of all that can be found, and ``batch_rules``, where they are
checked.
"""

__all__ = [
    "batch_rules",
    "digests",
    "header_table",
    "report",
    "rules",
    "text_files",
]
