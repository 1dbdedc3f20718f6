"""What two brokers may answer differently: a table, each row with its reason.

A sequence does not ask what Kafka breaks at (UNKNOWN_SERVER_ERROR, or no answer): an unknown
operation on a configuration, a list that is unknown and added to, a topic without a name in a page,
a marker of a negative producer id, a topic id of zeros, a resource that stands twice in
AlterConfigs. Nor does it open a fetch session of no partitions, which Kafka has and a broker here
refuses with id 0; nor does it name a group or a resource twice to have it described, so that
answers are bounded.

Kafka draws who leads a group after its leader left, and how fast a machine is differs. So what does
not come again when its sequence is repeated is told, and not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from replication.protocol import ApiKey
from tests.differential.steps import Step, Tree, dump

# There is no remote storage here, and a cluster of Kafka has a least size of the ISR of its own.
NOT_OURS = (
    "local.retention.bytes",
    "local.retention.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "min.insync.replicas",
)
BROKER = 4  # a type of resources
ALL = {
    ApiKey.METADATA: ("topics", "name"),
    ApiKey.LIST_GROUPS: ("groups", "group_id"),
    ApiKey.ELECT_LEADERS: ("replica_election_results", "topic"),
    ApiKey.LIST_TRANSACTIONS: ("transaction_states", "transactional_id"),
    ApiKey.LIST_CONFIG_RESOURCES: ("config_resources", "resource_name"),
}
"""Answers that may hold what other sequences made, and its names."""
SOME = ("topics", "topic_partitions", "producer_id_filters")
"""Fields that say what is asked for."""


class Known(NamedTuple):
    """A difference with its reason, and what takes it out of an answer."""

    reason: str
    without: Callable[[Step, Tree], Tree]


def comparable(step: Step, tree: Tree) -> Tree:
    """``tree`` without what may differ."""
    if not isinstance(tree, dict):
        return tree
    if step.key in ALL and not any(map(step.request.get, SOME)):
        field, name = ALL[step.key]
        tree = {**tree, field: _own(step, tree.get(field, ()), name)}
    for known in KNOWN.get(step.key, ()):
        tree = known.without(step, tree)
    return tree


def _own(step: Step, found: Tree, name: str) -> Tree:
    """What the sequence made, whose client has its name; and the broker."""
    return [each for each in found if each.get(name, "").startswith((step.client, "@"))]


def _parts(tree: Tree) -> list[Tree]:
    """The partitions of a fetch in the order of the answer, each with its topic."""
    return [
        {**{key: topic[key] for key in ("topic", "topic_id") if key in topic}, **part}
        for topic in tree.get("responses", ())
        for part in topic["partitions"]
    ]


def _flat(step: Step, tree: Tree) -> Tree:
    return {**tree, "responses": _parts(tree)}


def _unknown_last(step: Step, tree: Tree) -> Tree:
    known = [each for each in tree["responses"] if each["error_code"] not in (3, 100)]
    others = [each for each in tree["responses"] if each["error_code"] in (3, 100)]
    return {**tree, "responses": [*known, *sorted(others, key=dump)]}


def _without_empty_lists(step: Step, tree: Tree) -> Tree:
    for part in tree["responses"]:
        if not part["records"]:
            part.pop("aborted_transactions", None)
    return tree


def _news_of_session(step: Step, tree: Tree) -> Tree:
    if not isinstance(tree.get("session_id"), str):
        return tree
    news = [
        part
        for part in tree["responses"]
        if part["records"] or part["error_code"] or "diverging_epoch" in part
    ]
    return {**tree, "responses": sorted(news, key=dump)}


def _our_configs(field: str) -> Callable[[Step, Tree], Tree]:
    def without(step: Step, tree: Tree) -> Tree:
        found = []
        for each in tree.get(field, ()):
            if each.get("configs"):
                kept = [one for one in each["configs"] if one["name"] not in NOT_OURS]
                each = {key: value for key, value in each.items() if key != "configs"}
                each |= {"configs": kept} if kept else {}
            found.append(each)
        return {**tree, field: sorted(found, key=dump)}

    return without


def _without_field(name: str, resource_type: int | None = None) -> Callable[[Step, Tree], Tree]:
    """Of configurations, or only those of one type of resources."""

    def without(step: Step, tree: Tree) -> Tree:
        results = []
        for result in tree.get("results", ()):
            if "configs" in result and resource_type in (None, result.get("resource_type")):
                configs = [
                    {key: value for key, value in each.items() if key != name}
                    for each in result["configs"]
                ]
                result = {**result, "configs": configs}
            results.append(result)
        return {**tree, "results": sorted(results, key=dump)}

    return without


def _of_others_than_brokers(step: Step, tree: Tree) -> Tree:
    found = [each for each in tree.get("responses", ()) if each.get("resource_type") != BROKER]
    return {**tree, "responses": found}


def _elected(step: Step, tree: Tree) -> Tree:
    results = tree.get("replica_election_results", ())
    elected = [each for each in results if each.get("partition_result")]
    return {**tree, "replica_election_results": elected}


def _own_logs(step: Step, tree: Tree) -> Tree:
    results = [
        {**each, "topics": _own(step, each.get("topics", ()), "name")}
        for each in tree.get("results", ())
    ]
    return {**tree, "results": results}


CHANGED_AT_START = Known("a broker reads its configuration at its start", _of_others_than_brokers)
KNOWN: dict[ApiKey, tuple[Known, ...]] = {
    ApiKey.FETCH: (
        Known("topics may come in pieces", _flat),
        Known("Kafka answers partitions that it does not know after all others", _unknown_last),
        Known("without records Kafka's list of aborts is null or empty", _without_empty_lists),
        Known(
            "a session here has its own order, and answers what a request names, news or not",
            _news_of_session,
        ),
    ),
    ApiKey.CREATE_TOPICS: (
        Known("no remote storage, no ISR of the cluster", _our_configs("topics")),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        Known("no remote storage, no ISR of the cluster", _our_configs("results")),
        Known("there is no documentation here", _without_field("documentation")),
        Known(CHANGED_AT_START.reason, _without_field("read_only", BROKER)),
    ),
    ApiKey.ALTER_CONFIGS: (CHANGED_AT_START,),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (CHANGED_AT_START,),
    ApiKey.ELECT_LEADERS: (
        Known("Kafka names each topic that there is, where nothing was elected too", _elected),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        Known("the sizes of internal topics are those of all sequences", _own_logs),
    ),
}
