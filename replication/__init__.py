"""Replicas of logs on several brokers. Imports ``logstore`` and ``checkpoints``, never the reverse.

Today it holds what a broker needs to answer for its storage: the table of Kafka's wire error codes.
"""

from __future__ import annotations

from replication.error_codes import ErrorCode, error_code_of

__all__ = ["ErrorCode", "error_code_of"]
