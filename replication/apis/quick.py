"""Which requests are answered on the network thread: a change of threads would cost them more than
their work does.
"""

from __future__ import annotations

from replication.network import ReceivedRequest
from replication.protocol import ApiKey

MAX_BYTES = 32 << 10
"""Of a request: a batch of the size that producers make by default fits, with what is around it.
Checking the records of a larger one takes its time."""

QUICK = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.FETCH,
        ApiKey.HEARTBEAT,
        ApiKey.METADATA,
        ApiKey.PRODUCE,
    }
)


def is_quick(received: ReceivedRequest) -> bool:
    """Whether a request is usually answered, or left to wait, within a fraction of a ms.

    An append may sync its log, and a read may meet a cold disk. The network notices that an API is
    slow, and hands it to other threads for a while.
    """
    return received.api_key in QUICK and received.body.nbytes <= MAX_BYTES
