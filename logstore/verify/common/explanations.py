"""What a finding of each rule means, what may have caused it, and what to do about it.

``logstore explain``, ``logstore verify --explain`` and the HTML report show the same text. A new
row in `rules` needs a text here.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.verify.common.rules import RULES


class Explanation(NamedTuple):
    """Each text is one or more whole sentences."""

    meaning: str
    cause: str
    advice: str


_BYTES = (
    "Bytes changed on the disk, in memory or on the way: a failing disk or memory module, a stray "
    "write, a copy that was cut short."
)
_HEADER = (
    _BYTES + " No checksum covers this field, so a single flipped bit is enough and the broker "
    "does not notice."
)
_WRITER = "A producer, a proxy or a tool that writes this format wrongly; rarely, damaged bytes."
_CRASH = "A crash or a power cut in the middle of a write, or a write that is under way just now."
_HAND = "Somebody edited, copied or restored single files by hand; or damaged bytes."
_RESTORE = (
    "Files of different moments lie side by side, as after restoring a part of a backup or copying "
    "a directory that was in use; or a crash on a disk that lost writes it had confirmed."
)

_REPLICA = (
    "`logstore rescue SRC… --to DST`, given the directories of all replicas, makes one log of what "
    "each of them still has. If another replica is whole, the broker may fetch it again instead: "
    "stop it, copy the partition directory elsewhere, and move it away. Then check the disk."
)
_REBUILD_INDEX = (
    "The records are not concerned. Stop the broker and delete the index files of this segment: "
    "the next start builds them again."
)
_NEXT_START = "Nothing to do: the next start of the broker settles it."
_LOOK = "Find out who wrote it. The records can be read as they are; nothing need be repaired."
_REWRITE_BY_BROKER = (
    "Stop the broker, keep a copy of the file and delete it: the next start makes a new one, and "
    "scans the logs concerned."
)

_E = Explanation
EXPLANATIONS = {
    # the .log: headers
    "log-base-offset": _E(
        "The base offset in the header of a batch is wrong: its neighbours leave room for another "
        "one only. A consumer would get its records under wrong offsets, twice or not at all.",
        _HEADER,
        _REPLICA,
    ),
    "log-length": _E(
        "The length in the header of a batch is wrong, so a reader loses its way here. Everything "
        "behind it in the segment is out of reach, and a recovery would cut it off.",
        _HEADER,
        _REPLICA + " Do not let an unclean start recover this log before: it would cut.",
    ),
    "log-negative-epoch": _E(
        "A batch has a negative leader epoch. Followers and consumers compare epochs to find where "
        "logs part, and would cut at a wrong place.",
        _HEADER,
        _REPLICA,
    ),
    "log-magic": _E(
        "The byte that names the version of the format is wrong. A broker refuses the batch and "
        "what is behind it.",
        _HEADER,
        _REPLICA,
    ),
    "log-checksum": _E(
        "The content of a batch is not what was written: its checksum does not match. A consumer "
        "stops here with an error, and a recovery that scans this segment cuts the log here.",
        _BYTES,
        _REPLICA,
    ),
    "log-record-offsets": _E(
        "Records of a batch have offsets outside the range that its header claims.",
        _WRITER,
        _REPLICA,
    ),
    "log-max-timestamp": _E(
        "The largest timestamp in a header is not that of the records. Searches by time and "
        "retention by time go by the header, and may miss the batch or keep it too long.",
        _WRITER,
        _LOOK,
    ),
    "log-producer-epoch": _E(
        "A batch names a producer id but no producer epoch: the broker cannot fence an old "
        "producer by it.",
        _WRITER,
        _LOOK,
    ),
    "log-sequence": _E(
        "A batch of a producer lacks its sequence number, or a control batch has one. Duplicates "
        "of such a batch are not recognized.",
        _WRITER,
        _LOOK,
    ),
    "log-record-count": _E(
        "A header claims more records than its offsets have room for, or other numbers that cannot "
        "be.",
        _WRITER,
        _REPLICA,
    ),
    "log-codec": _E(
        "The batch names a compression codec that does not exist, so it cannot be unpacked.",
        _WRITER,
        _REPLICA,
    ),
    "log-transactional": _E(
        "A batch is marked as part of a transaction, and has no producer whose transaction it "
        "could be.",
        _WRITER,
        _LOOK,
    ),
    "log-attributes": _E(
        "Attribute bits are set that no known version of the format gives a meaning.",
        "A newer writer than this check knows, or one that writes the format wrongly.",
        _LOOK,
    ),
    "log-empty-batch": _E(
        "A batch claims to hold no records, and has bytes behind its header.", _WRITER, _REPLICA
    ),
    "log-no-epoch": _E(
        "A batch has no leader epoch (−1), and batches around it have one. Followers cannot tell "
        "by it where logs part.",
        "A message that was converted from an old format, or a tool that copied batches without "
        "the epoch.",
        _LOOK,
    ),
    # the .log: records
    "log-records": _E(
        "The records in a batch are not encoded as their lengths say, though the checksum matches. "
        "A consumer fails at this batch.",
        "A producer wrote it so: the checksum is right, hence nothing changed on the disk.",
        "Find the producer, or the library it uses. The batch itself cannot be read; consumers "
        "have to seek past it.",
    ),
    "log-timestamp": _E(
        "A record has a negative timestamp that does not mean “none”.", _WRITER, _LOOK
    ),
    "log-control-record": _E(
        "A control batch, which ends transactions or names leaders, holds no control record of "
        "a known form. Readers of committed data may wait here forever.",
        _WRITER,
        _REPLICA,
    ),
    "log-compression": _E(
        "Compressed content cannot be unpacked to the records that the header counts, though the "
        "checksum matches. A consumer fails at this batch.",
        "A producer, or a proxy that compresses again, wrote it; or memory failed before the "
        "checksum was made.",
        "Find the producer, or the library it uses. Another replica has the same bytes; consumers "
        "have to seek past them.",
    ),
    "log-legacy-checksum": _E(
        "The content of a message of an older format is not what was written: its checksum does "
        "not match.",
        _BYTES,
        _REPLICA,
    ),
    "log-legacy-message": _E(
        "A message of an older format, or what is wrapped in it, cannot be read.", _WRITER, _REPLICA
    ),
    "log-wrapper-offset": _E(
        "A compressed wrapper of an older format has another offset than its last message: its "
        "messages get wrong offsets.",
        _HEADER,
        _REPLICA,
    ),
    "log-wrapper-timestamp": _E(
        "A compressed wrapper of an older format has not the largest timestamp of its messages.",
        "Some releases of Kafka wrote it so.",
        "Nothing to do, unless searches by time are wrong.",
    ),
    # the .log: order, epochs, producers
    "log-epoch": _E(
        "The leader epoch of a batch is not the one that leader-epoch-checkpoint has for its "
        "offset. After the next election a follower may cut too much or too little.",
        _HEADER + " Or: " + _RESTORE + " As an info: a cut that a start has yet to complete.",
        _REPLICA,
    ),
    "log-offset-span": _E(
        "An offset lies so far above the base of its segment that no index entry can hold it.",
        "A damaged base offset, or a compaction by an old release.",
        "If the neighbours show that the offset is right, the next start of logstore splits the "
        "segment; else it is damage. " + _REPLICA,
    ),
    "log-compacted-gap": _E(
        "Offsets are missing, as compaction leaves them: an older record of a key went away.",
        "Compaction (cleanup.policy=compact).",
        "Nothing to do.",
    ),
    "replicas-differ": _E(
        "Replicas of a partition differ where they must be equal, below the high watermark: "
        "consumers read other records from one broker than from another. As information: a "
        "comparison was left out, or another finding explains it.",
        "Damage on one replica; an unclean election; a broker that came back from an old backup.",
        "The finding names a replica that has lost something, or the one that stands alone. With "
        "two that both claim to be right, see what each has: `logstore read DIR TOPIC --from "
        "OFFSET`. " + _REPLICA,
    ),
    "log-epoch-falls": _E(
        "A batch has another leader epoch than those before and behind it. As an info, epochs fall "
        "once: those of a controller that began anew.",
        _HEADER + " As an info: a cluster with a new controller took the directory over.",
        _REPLICA,
    ),
    "log-offset-order": _E(
        "Offsets go back, leave their segment, or have a gap. As an error a reader gets records "
        "twice, or none; a gap (a warning) may be history, such as a truncation inside a batch, or "
        "a loss.",
        "A lost or foreign segment file; a damaged base offset; two histories in one directory. "
        + _RESTORE,
        "Look whether a segment file is missing. " + _REPLICA,
    ),
    # the .log: its end
    "log-torn-end": _E(
        "The log does not end with a whole batch. At the end of an active segment this is normal "
        "after a crash. In an older segment, or below the recovery point, records are lost.",
        _CRASH + " As an error: " + _RESTORE,
        "As a warning nothing: the next start cuts it. As an error: " + _REPLICA,
    ),
    "log-zero-end": _E(
        "The log ends in zeros. At the end of an active segment this is normal after a power cut, "
        "or with preallocate=true. Elsewhere data was never written, or is lost.",
        _CRASH + " As an error: a disk that lost writes it had confirmed.",
        "As information or a warning nothing: the next start cuts it. As an error: " + _REPLICA,
    ),
    "recovery-point": _E(
        "The log ends below its recovery point: what was flushed to the disk is not there any "
        "more. As a warning: behind a clean shutdown, recovery point and log do not agree.",
        _RESTORE + " Or somebody cut or deleted a segment.",
        "Acknowledged records may be lost here. " + _REPLICA,
    ),
    "log-unclean-end": _E(
        "The directory claims a clean shutdown, and a log ends in the middle of a batch. The next "
        "start trusts the claim and does not scan.",
        _RESTORE,
        "Stop the broker, delete the file .kafka_cleanshutdown and start it: it recovers. Other "
        "replicas have what is cut.",
    ),
    "log-start-offset": _E(
        "The log ends below its log start offset: nothing is left of it.",
        _RESTORE + " Or segments were deleted by hand.",
        _REPLICA,
    ),
    "cleaner-offset": _E(
        "The log ends below the offset up to which the cleaner has worked, as it noted itself.",
        "The log was cut after a compaction, or: " + _RESTORE,
        "Nothing, if a recovery cut the log: the cleaner starts again. Else compare replicas.",
    ),
    "high-watermark": _E(
        "The log ends below its own high watermark, or begins above it. What consumers were "
        "served may be gone on this replica. As a warning it is what an unclean stop may leave: "
        "followers catch up from the leader.",
        _CRASH + " As an error, behind a clean shutdown: " + _RESTORE,
        "As a warning: start the broker and let it catch up. As an error: compare the replicas "
        "(`logstore verify DIR0 DIR1 …`) before one with less becomes leader.",
    ),
    # indexes
    "index-entry": _E(
        "An entry of the offset index leads to no batch, or to another one. Reads that begin there "
        "find the wrong place.",
        _BYTES
        + " Or an index of another moment than its log. As an info: what a crash or a writer "
        "at work leaves of it.",
        _REBUILD_INDEX,
    ),
    "index-order": _E(
        "The entries of an offset index do not ascend, so a search in it finds anything.",
        _BYTES,
        _REBUILD_INDEX,
    ),
    "timeindex-entry": _E(
        "An entry of the time index is wrong: a search by time begins too late and misses records.",
        _BYTES + " Or an index of another moment than its log.",
        _REBUILD_INDEX,
    ),
    "timeindex-order": _E(
        "The entries of a time index do not ascend, so a search in it finds anything.",
        _BYTES,
        _REBUILD_INDEX,
    ),
    "index-skips-batches": _E(
        "Entries of the offset index name the end of a later batch than the one they lead to. A "
        "search finds the same records, a few batches later.",
        "Kafka before 4.1 made one entry for an append of several batches, as a follower's. Or the "
        "entries lead to an earlier batch than they should.",
        "Nothing to do. If the log was never written by a Kafka before 4.1, delete the index of "
        "this segment while the broker is stopped: the next start builds it again.",
    ),
    "timeindex-last-entry": _E(
        "The time index of a finished segment lacks its last entry. Retention by time takes the "
        "largest timestamp from there, and may delete the segment too early or too late.",
        "A crash between a roll and its index.",
        _REBUILD_INDEX,
    ),
    "index-zeros": _E(
        "An index that takes no more entries still has zeros behind them: it was never trimmed.",
        "The broker was killed; a start cuts the zeros off.",
        _NEXT_START,
    ),
    "index-partial-entry": _E(
        "An index ends in the middle of an entry, which is left out.", _CRASH, _NEXT_START
    ),
    "index-without-log": _E(
        "An index has no .log beside it, so there are no records to which it leads.",
        "A deletion that a crash interrupted; or the .log was lost.",
        "Look for a gap between the other segments. Without one: the next start of the broker "
        "removes it. With one records are lost. " + _REPLICA,
    ),
    "log-without-index": _E(
        "A log with data lacks an index. Reads of this segment would have to go through all of it.",
        "Somebody deleted it, or a crash came before it was made.",
        _NEXT_START,
    ),
    # producers and transactions
    "txnindex-offsets": _E(
        "An entry of the transaction index has other offsets than the log: readers of committed "
        "data would get records of an aborted transaction, or miss committed ones.",
        _BYTES + " Or an index of another moment than its log.",
        _REBUILD_INDEX,
    ),
    "txnindex-entries": _E(
        "An aborted transaction is missing in the transaction index, or it has one that the log "
        "does not: readers of committed data get wrong records.",
        _BYTES + " Or an index of another moment than its log.",
        _REBUILD_INDEX,
    ),
    "txnindex-form": _E(
        "A transaction index has an entry of an unknown version, or ends in the middle of one.",
        _CRASH + " Of an unknown version: a newer release, or damaged bytes.",
        _REBUILD_INDEX,
    ),
    "snapshot-form": _E(
        "A snapshot of the producers is damaged. The broker deletes it and reads the log instead.",
        _BYTES,
        _NEXT_START,
    ),
    "snapshot-producer": _E(
        "A snapshot has another last batch of a producer than the log. A broker that trusts it "
        "takes a duplicate for new, or a new batch for a duplicate.",
        _RESTORE,
        "Stop the broker and delete the .snapshot files of the partition: the next start replays "
        "the log.",
    ),
    "producer-sequence": _E(
        "A batch of an idempotent producer has another sequence number than the one that was due: "
        "one came twice, in another order, or batches between two are missing.",
        "Batches were lost, or written twice, below the broker: a restored or edited file, records "
        "lost in an unclean election. Or a broker that had forgotten the producer.",
        "Compare with another replica. What is missing here may be there; what is doubled has to "
        "be distinguished by a reader.",
    ),
    "snapshot-transaction": _E(
        "A snapshot has another open transaction of a producer than the log. Readers of committed "
        "data may wait forever, or read too far.",
        _RESTORE,
        "Stop the broker and delete the .snapshot files of the partition: the next start replays "
        "the log.",
    ),
    "snapshot-above-log": _E(
        "A snapshot of the producers lies above the end of the log.",
        "The log was cut, by a recovery or by hand, and the snapshot stayed.",
        _NEXT_START,
    ),
    # epochs and checkpoints
    "snapshot-missing": _E(
        "A log that was closed cleanly has no snapshot of its producers at its end. The next start "
        "knows only those of an older one, or none: a repeated batch may be taken as a new one.",
        _HAND,
        "Remove the marker of the clean shutdown while the broker is stopped: the next start reads "
        "the log and makes the snapshot.",
    ),
    "checkpoint-form": _E(
        "A checkpoint of offsets cannot be read, or has two entries for a partition. The broker "
        "treats all its entries as absent.",
        _HAND,
        _REWRITE_BY_BROKER,
    ),
    "epochs-form": _E(
        "`leader-epoch-checkpoint` cannot be read. Without it a follower cannot tell where "
        "its log parts from the leader's.",
        _HAND,
        "A start of logstore sets the file aside and takes the epochs from the batches. On a Kafka "
        "broker: stop it and run `logstore recover DIR`.",
    ),
    "epochs-range": _E(
        "`leader-epoch-checkpoint` has epochs that begin above the end or below the start of a "
        "log.",
        "The log was cut or its start moved, and a crash came before the file was rewritten.",
        _NEXT_START,
    ),
    "checkpoint-deleted": _E(
        "A checkpoint has an entry of a partition whose deletion is under way.",
        "A deletion just now, or one before a crash.",
        _NEXT_START,
    ),
    "epochs-start": _E(
        "`leader-epoch-checkpoint` is missing or lacks the first epochs of the log. Below its "
        "first entry a follower cannot find where logs diverge.",
        "The file was deleted or restored; or the log is of a release that had none. As an info: "
        "epochs fell, or records were deleted just before a crash.",
        "Nothing, if the log has one epoch only. Else a start of logstore, or `logstore recover "
        "DIR` before that of a broker, takes the epochs from the batches.",
    ),
    "checkpoint-stray": _E(
        "A checkpoint has an entry of a partition that is not in the directory.",
        "The partition was moved or deleted by hand; or its directory is lost.",
        "If the partition should be here, look for it before the broker starts: it would begin "
        "with an empty log.",
    ),
    # metadata and directories
    "directory-skipped": _E(
        "A directory is marked as deleted or as a stray, and was not looked into.",
        "A topic was deleted, or a partition was found that the cluster does not know.",
        "-delete goes by itself. Look into a -stray directory before you delete it: nobody else "
        "will.",
    ),
    "directory-name": _E(
        "A directory has no name of a partition. A Kafka broker refuses to start with it.",
        "Somebody made or renamed it; lost+found of a file system is the most common.",
        "Move it elsewhere.",
    ),
    "meta-missing": _E(
        "`meta.properties` is missing: nothing says to which broker and cluster the directory "
        "belongs.",
        "A directory that was never formatted or used, or a copy of a part of one.",
        "Before a Kafka broker uses it, write the file with the ids of that broker.",
    ),
    "file-name": _E(
        "A file looks like one of a segment, but its name is not 20 digits of an offset. No broker "
        "opens it.",
        "A copy or a rename by hand.",
        "Rename it back, if it belongs here; else move it away.",
    ),
    "leftover": _E(
        "Files of a deletion, a compaction or a roll that is not finished; as a warning, a roll "
        "that does not follow what is before it, or that a clean stop should have settled.",
        "A crash, or the work is under way just now.",
        _NEXT_START,
    ),
    "temporary-file": _E(
        "There is a temporary file of a write that was not finished.", _CRASH, _NEXT_START
    ),
    "partition-metadata": _E(
        "`partition.metadata` cannot be read. The broker does not know to which topic the "
        "partition belongs, and refuses it.",
        _HAND,
        "Write it with the topic's id: another partition of the topic has the same file.",
    ),
    "topic-id": _E(
        "Partitions of a topic have different topic ids: some belong to an earlier topic of the "
        "name, and their records are not of this one.",
        "The topic was deleted and created again while this broker or directory was away.",
        "Keep the partitions with the id that the cluster has; copy the others elsewhere before "
        "you remove them.",
    ),
    "meta-form": _E(
        "`meta.properties` cannot be read, or has keys or values that no release writes. The "
        "broker does not start on an unreadable one.",
        _HAND,
        "Write it again, with the ids of the broker and the cluster.",
    ),
    "other-cluster": _E(
        "A directory is of another cluster than the first one: its partitions were not compared.",
        "Directories of two clusters were given.",
        "Check each cluster by itself.",
    ),
    "clean-marker": _E(
        "The marker of a clean shutdown has a content that no known release writes.",
        "A newer release, or: " + _HAND,
        "If in doubt whether the stop was clean, delete the file: the next start recovers.",
    ),
    "file-vanished": _E(
        "A file or directory went away while it was looked at.",
        "A broker is using the directory.",
        "Nothing to do.",
    ),
    # this library's own files, and what is left out
    "text-form": _E(
        "A small file has the right content in an unusual form, such as a number with leading "
        "zeros: neither logstore nor Kafka wrote it so.",
        _HAND,
        "Nothing, if you know who edited it. Else compare it with a backup.",
    ),
    "cursor": _E(
        "A cursor, the place that a service has reached, does not fit the log: the log was cut or "
        "created again since, or the file is damaged.",
        _RESTORE,
        "The service gets an error when it opens the cursor. Decide from where it goes on.",
    ),
    "clean-stop": _E(
        "`clean-stop`, by which a start decides what it need not scan, does not fit the log.",
        _RESTORE,
        "Nothing to do: a start that does not believe it recovers instead.",
    ),
    "topic-properties": _E(
        "`topic.properties`, the configuration of a topic, cannot be read, has unknown keys, or is "
        "not the same in all partitions.",
        _HAND + " As an info: a change is under way, or a crash came in the middle of it; the next "
        "start takes the newer one.",
        "Set the configuration again: `logstore alter DIR TOPIC --config KEY=VALUE`.",
    ),
    "topic-creation": _E(
        "The creation of a topic was interrupted, or its file does not fit the partitions.",
        "A crash, or the creation is under way just now.",
        _NEXT_START + " It removes what was made of a topic that is not complete.",
    ),
    "too-large": _E(
        "A file is larger than its format allows, and was not read.",
        _HAND + " Or a file of something else has the name.",
        "Look what it is. " + _REPLICA,
    ),
    "not-a-file": _E(
        "What has the name of a file is none: a directory, a pipe, a device, or a link that leads "
        "nowhere. It was not opened.",
        "Somebody put it there, or a disk to which links lead is not mounted.",
        "Mount the disk, or move it away. A start without it would make a new, empty file.",
    ),
    "not-checked": _E(
        "Something was left out of the check, because it would not fit into its memory.",
        "Very many producers, transactions or changes of epoch; or a batch that unpacks to much.",
        "Nothing is known to be wrong.",
    ),
    "unpacks-too-much": _E(
        "A batch unpacks to more than the limit, and its records were not checked.",
        "A batch of very well compressible data, or one made to exhaust the memory of its reader.",
        "Read the batch with a consumer that has the memory, or find the producer.",
    ),
}


def explain(rule: str) -> list[tuple[str, str]]:
    """The titles and texts about a rule, in reading order.

    Raises:
        KeyError: the rule does not exist.
    """
    found = EXPLANATIONS[rule]
    return [
        ("Rule", RULES[rule].sentence),
        ("Meaning", found.meaning),
        ("Cause", found.cause),
        ("What to do", found.advice),
    ]


__all__ = ["EXPLANATIONS", "Explanation", "explain"]
