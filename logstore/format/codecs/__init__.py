"""The compression codecs of a batch. Start with ``compression``; each other module is one
framing.
"""

__all__ = ["compression"]
