"""``logstore dump``, one module for each kind of file.

Begin with ``log`` for segments and ``small_files`` for everything else; ``output`` prints.
"""

__all__ = ["log", "output", "small_files"]
