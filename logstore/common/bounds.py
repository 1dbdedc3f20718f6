"""The bounds of a batch, in bytes, for everything that writes or reads one.

What is written must be readable: a batch that a reader refuses would block all behind it. So the
writer refuses what lies above ``BATCH_MAX`` and ``UNPACKED_MAX``; readers, the cleaner, ``verify``
and ``rescue`` take all below. A follower takes what its leader has. Spark's bound is an option,
because that memory is a worker's, and many run at once.
"""

from __future__ import annotations

from typing import Final

BATCH_MAX: Final = 2**31 - 1
"""A stored batch, header and all, and a segment: lengths and positions on the disk have 31 bits."""

UNPACKED_MAX: Final = 256 << 20
"""What one compressed batch may unpack to.

That allows a batch of 1 MiB with a ratio of 255, the best of LZ4; text and JSON have 5 to 30. Kafka
has no bound. Content above 16 MiB is measured in constant memory before a buffer is made, so a
refused batch costs little (W-233); see ``limits.EAGER_BYTES``.
"""

WHOLE_BATCH_MAX: Final = 16 << 20
"""The largest batch that a search in damaged bytes reads in one piece. Larger ones are hashed."""

TRUSTED_BATCH_MAX: Final = 64 << 20
"""Up to this length a batch is read on the word of its header; above it the checksum comes first.

No checksum covers the length, and a file may be sparse.
"""

SPARK_BATCH_MAX: Final = 64 << 20
"""What one batch may take in a worker of Spark, stored or unpacked: ``maxBatchBytes``."""
