"""The rules by which a verification names what it finds, one row for each.

The ids are those of docs/verify.md, and never change their meaning. A row says what the rule asks
for. The message of a finding says how it is broken.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.verify.common.report import Severity

_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO


class Rule(NamedTuple):
    """``number`` is the rule of docs/rules behind it.

    ``severities`` lists what a finding may have, the worst first.
    """

    id: str
    number: str
    severities: tuple[Severity, ...]
    sentence: str


_ROWS = (
    # the .log: headers
    Rule(
        "log-base-offset",
        "F-49",
        (_E,),
        "A batch begins at the offset where the one before it ends.",
    ),
    Rule("log-length", "F-50", (_E,), "The length of a batch leads to the next batch."),
    Rule("log-negative-epoch", "F-51", (_E,), "A leader epoch is not negative."),
    Rule(
        "log-magic",
        "F-52",
        (_E,),
        "The magic byte is one that exists, and the checksum matches with it.",
    ),
    Rule("log-checksum", "F-53", (_E,), "The checksum of a batch matches its bytes."),
    Rule("log-record-offsets", "F-55", (_E,), "The offsets of records lie inside their batch."),
    Rule(
        "log-max-timestamp",
        "F-57",
        (_W,),
        "The largest timestamp of a batch is that of its records.",
    ),
    Rule("log-producer-epoch", "F-59", (_W,), "A batch with a producer id has a producer epoch."),
    Rule(
        "log-sequence",
        "F-60",
        (_W,),
        "Data of a producer has a sequence, and a control batch has none.",
    ),
    Rule(
        "log-record-count",
        "F-61",
        (_E,),
        "A batch has no more records than offsets, and a header that can be.",
    ),
    Rule("log-codec", "F-65", (_E,), "The codec of a batch exists."),
    Rule("log-transactional", "F-67", (_W,), "A transactional batch has a producer."),
    Rule("log-attributes", "F-70", (_W,), "Only known bits of the attributes are set."),
    Rule("log-empty-batch", "F-92", (_E,), "A batch without records has no content."),
    Rule(
        "log-no-epoch", "F-219", (_W,), "Batches between others that have a leader epoch have one."
    ),
    # the .log: records
    Rule(
        "log-records",
        "F-73",
        (_E, _W),
        "Records are encoded as their lengths say, and fill their batch.",
    ),
    Rule(
        "log-timestamp",
        "F-75",
        (_W,),
        "Timestamps of records are not negative, other than -1 for none.",
    ),
    Rule(
        "log-control-record",
        "F-80",
        (_E,),
        "A control batch holds a control record of a known form.",
    ),
    Rule(
        "log-compression",
        "F-82",
        (_E,),
        "Compressed content unpacks to the records that its header counts.",
    ),
    Rule(
        "log-legacy-checksum",
        "F-98",
        (_E,),
        "The checksum of a message of an older format matches its bytes.",
    ),
    Rule(
        "log-legacy-message",
        "F-100",
        (_E,),
        "A message of an older format, and what is wrapped in it, can be read.",
    ),
    Rule(
        "log-wrapper-offset",
        "F-101",
        (_E,),
        "A compressed wrapper has the offset of its last message.",
    ),
    Rule(
        "log-wrapper-timestamp",
        "F-102",
        (_W,),
        "A compressed wrapper has the largest timestamp of its messages.",
    ),
    # the .log: order, epochs, producers
    Rule(
        "log-epoch",
        "F-203",
        (_E, _I),
        "Batches have the leader epoch that leader-epoch-checkpoint says.",
    ),
    Rule(
        "log-offset-span",
        "F-243",
        (_E,),
        "Offsets are at most 2^31-1 above the base of their segment.",
    ),
    Rule("log-compacted-gap", "F-307", (_I,), "Gaps in a compacted log are normal."),
    Rule(
        "replicas-differ",
        "I-4",
        (_E, _W, _I),
        "Replicas have the same batches below their high watermarks.",
    ),
    Rule(
        "log-epoch-falls",
        "I-8",
        (_E, _I),
        "Leader epochs rise, or begin anew with a new controller.",
    ),
    Rule(
        "log-offset-order",
        "I-11",
        (_E, _W),
        "Offsets ascend inside the range of their segment, without a gap.",
    ),
    # the .log: its end
    Rule(
        "log-torn-end",
        "F-106",
        (_E, _W, _I),
        "A log ends with a whole batch; a crash may leave a torn one.",
    ),
    Rule(
        "log-zero-end",
        "F-107",
        (_E, _W, _I),
        "A log ends with a whole batch; a crash may leave zeros.",
    ),
    Rule(
        "recovery-point",
        "F-222",
        (_E, _W),
        "A log reaches its recovery point; a clean stop flushes all of it.",
    ),
    Rule(
        "log-unclean-end", "F-258", (_E,), "Behind a clean shutdown a log ends with a whole batch."
    ),
    Rule("log-start-offset", "F-264", (_E,), "A log reaches its log start offset."),
    Rule(
        "cleaner-offset", "F-290", (_W,), "A log reaches the offset that the cleaner has on file."
    ),
    Rule(
        "high-watermark", "I-5", (_E, _W), "A log reaches its high watermark, which lies inside it."
    ),
    # indexes
    Rule(
        "index-entry",
        "F-113",
        (_E,),
        "An entry leads to a batch, and names the end of one appended there.",
    ),
    Rule("index-order", "F-114", (_E,), "The entries of an offset index ascend."),
    Rule(
        "timeindex-entry",
        "F-117",
        (_E, _W),
        "Up to the offset of an entry no timestamp is larger than its own.",
    ),
    Rule("timeindex-order", "F-118", (_E,), "The entries of a time index ascend."),
    Rule(
        "index-skips-batches",
        "F-132",
        (_I,),
        "Before Kafka 4.1 an entry is that of an append of several batches.",
    ),
    Rule(
        "timeindex-last-entry",
        "F-135",
        (_W,),
        "The time index of a segment that is done ends with its last entry.",
    ),
    Rule(
        "index-zeros",
        "F-137",
        (_W,),
        "An index that takes no more entries has no zeros behind them.",
    ),
    Rule("index-partial-entry", "F-141", (_W,), "An index ends with a whole entry."),
    Rule("index-without-log", "F-241", (_W,), "An index has a log beside it."),
    Rule("log-without-index", "F-242", (_W,), "A log with data has both indexes beside it."),
    # producers and transactions
    Rule(
        "txnindex-offsets", "F-121", (_E,), "A transaction index has the offsets that the log says."
    ),
    Rule(
        "txnindex-entries",
        "F-122",
        (_E,),
        "A transaction index has an entry for each aborted transaction, alone.",
    ),
    Rule(
        "txnindex-form",
        "F-124",
        (_E, _W),
        "A transaction index ends with a whole entry of a known version.",
    ),
    Rule(
        "snapshot-form",
        "F-126",
        (_E,),
        "A snapshot of producers has a matching checksum, and lies above them.",
    ),
    Rule(
        "snapshot-producer",
        "F-182",
        (_W,),
        "A snapshot has the epochs, last batch and last time of a producer.",
    ),
    Rule(
        "producer-sequence",
        "F-189",
        (_W,),
        "The sequences of a producer follow each other in an epoch.",
    ),
    Rule(
        "snapshot-transaction", "F-193", (_W,), "A snapshot has the open transaction of a producer."
    ),
    Rule("snapshot-above-log", "F-201", (_W,), "A snapshot does not lie above the end of the log."),
    Rule(
        "snapshot-missing",
        "F-253",
        (_W,),
        "A clean stop leaves a snapshot of the producers at the log end.",
    ),
    # epochs and checkpoints
    Rule(
        "checkpoint-form",
        "F-31",
        (_E, _W),
        "An offset checkpoint has the form of one, an entry per partition.",
    ),
    Rule("epochs-form", "F-33", (_E,), "leader-epoch-checkpoint has the form of one."),
    Rule("epochs-range", "F-249", (_W, _I), "The epochs on file begin and end inside the log."),
    Rule(
        "checkpoint-deleted", "F-289", (_I,), "A partition that is being deleted loses its entry."
    ),
    Rule("epochs-start", "S-54", (_W, _I), "The epochs on file begin where those of the log do."),
    Rule(
        "checkpoint-stray",
        "S-55",
        (_W,),
        "An entry of a checkpoint has a partition in the directory.",
    ),
    # metadata and directories
    Rule(
        "directory-skipped",
        "F-3",
        (_I,),
        "Directories that are being deleted, or are strays, are not looked into.",
    ),
    Rule(
        "directory-name",
        "F-6",
        (_E,),
        "A directory in a log directory has the name of a partition.",
    ),
    Rule("meta-missing", "F-10", (_W,), "A log directory has meta.properties."),
    Rule(
        "file-name", "F-16", (_W,), "A file of a segment is named by 20 digits of its base offset."
    ),
    Rule("leftover", "F-24", (_W, _I), "A roll is settled; leftovers go with the next start."),
    Rule("temporary-file", "F-26", (_I,), "A write that was cut short leaves a temporary file."),
    Rule("partition-metadata", "F-36", (_E, _W), "partition.metadata has the form of one."),
    Rule("topic-id", "F-37", (_E,), "All partitions of a topic have one topic id."),
    Rule("meta-form", "F-39", (_E, _W), "meta.properties has the form of one."),
    Rule(
        "other-cluster", "F-41", (_I,), "Directories of one cluster are compared with each other."
    ),
    Rule(
        "clean-marker",
        "F-46",
        (_W,),
        "The marker of a clean shutdown is empty, or has a known form.",
    ),
    Rule("file-vanished", "F-288", (_I,), "A broker may delete files while they are looked at."),
    # this library's own files, and what is left out
    Rule("text-form", "L-1", (_W,), "A small file is written as its writers write it."),
    Rule("cursor", "L-2", (_E, _W), "A cursor fits the log that it speaks of."),
    Rule("clean-stop", "L-3", (_E, _W, _I), "clean-stop fits the log that it speaks of."),
    Rule(
        "topic-properties",
        "L-4",
        (_E, _W, _I),
        "topic.properties has known values, the same in all partitions.",
    ),
    Rule(
        "topic-creation",
        "L-5",
        (_E, _W, _I),
        "A topic whose creation was interrupted fits its partitions.",
    ),
    Rule("too-large", "L-6", (_E,), "A file is not larger than its format allows."),
    Rule("not-a-file", "L-7", (_E, _W), "What has the name of a file is a regular file."),
    Rule("not-checked", "I-18", (_I,), "All is checked that fits into the memory of a check."),
    Rule("unpacks-too-much", "S-50", (_W,), "A batch unpacks to no more than the limit."),
)

RULES = {rule.id: rule for rule in _ROWS}
"""All rules by their ids."""

NUMBERS = {rule.number: rule.id for rule in _ROWS}
"""The id of each number of docs/rules."""

__all__ = ["NUMBERS", "RULES", "Rule"]
