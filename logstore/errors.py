"""Errors: the class says what to do next, the fields hold the facts, the text gives the values::

    LogstoreError
    ├── CorruptDataError              the bytes are wrong: file, position, reason
    │   ├── CorruptBatchError         in a ``.log``: cut above the recovery point, reported below it
    │   ├── CorruptIndexError         in an index: rebuilt from the ``.log``, never fatal
    │   └── CorruptSnapshotError      in a ``.snapshot``: dropped, the next older one is used
    ├── LogUnavailableError           a log of the manager is too damaged to be opened; the reason
    ├── StorageFailedError            the medium failed; the log directory is offline until reopened
    ├── ResourceBusyError             descriptors or memory are short; nothing was done, try again
    ├── LogClosedError                the log is closed or deleted; nothing was done
    ├── LogCleaningAbortedError       the log changed under a pass of the cleaner; nothing was done
    ├── LogDirLockedError             another process, or this one, has the directory open
    ├── ForkedError                   the process that this one was forked from opened it
    ├── OffsetOutOfRangeError         the requested offset is outside the log
    │   └── LogTruncatedError         records that a reader has read were cut off
    ├── PartialAppendError            ``extend`` stopped in the middle; has what was appended
    ├── CursorError                   a cursor's name or file is not usable
    ├── ResultTooLargeError           the result is too large for one object
    ├── RecordRejectedError           the caller's batch breaks a rule; nothing was appended
    │   ├── CorruptMessageError       its checksum or structure is wrong
    │   ├── InvalidRecordError        a record or header field breaks a rule of the format
    │   ├── InvalidTimestampError     outside ``message.timestamp.{before,after}.max.ms``
    │   ├── RecordTooLargeError       a batch above ``max.message.bytes``, or unpacked 256 MiB
    │   ├── RecordListTooLargeError   one append above ``segment.bytes``
    │   ├── UnsupportedCompressionTypeError, UnsupportedForMessageFormatError
    │   ├── OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError,
    │   │   TransactionCoordinatorFencedError
    │   └── OffsetsOutOfOrderError, UnexpectedAppendOffsetError   follower appends
    ├── PolicyViolationError          e.g. DeleteRecords on a log that is only compacted
    ├── InconsistentTopicIdError      a log directory belongs to another topic id
    ├── UnknownTopicOrPartitionError, TopicExistsError, InvalidTopicError
    ├── ConfigError                   an unknown key, or a value outside its bounds
    └── InvariantError                logstore is wrong: stop, keep the files, report it

``replication.errors`` has those of a cluster.
"""

from logstore.common.errors import *  # noqa: F403  each of them, whatever is added

__all__ = [name for name in [*vars()] if name.endswith("Error") and name != "PrintableError"]
