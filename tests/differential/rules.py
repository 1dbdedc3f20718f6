"""What two brokers may answer differently, each rule with its reason."""

from __future__ import annotations

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


def comparable(step: Step, tree: Tree) -> Tree:
    """``tree`` without what may differ."""
    if not isinstance(tree, dict):
        return tree
    asks_for_some = any(map(step.request.get, SOME))
    if step.key in ALL and not asks_for_some:
        field, name = ALL[step.key]
        tree = {**tree, field: _own(step, tree.get(field, ()), name)}
    if step.key is ApiKey.DESCRIBE_LOG_DIRS:
        results = [
            {**each, "topics": _own(step, each.get("topics", ()), "name")}
            for each in tree.get("results", ())
        ]
        tree = {**tree, "results": results}
    return RULES[step.key](step, tree) if step.key in RULES else tree


def _own(step: Step, found: Tree, name: str) -> Tree:
    """What the sequence made, whose client has its name; and the broker."""
    return [each for each in found if each.get(name, "").startswith((step.client, "@"))]


def _fetch(step: Step, tree: Tree) -> Tree:
    """Kafka answers partitions that it does not know after all others. Where there are no records,
    its list of aborted transactions is null or empty. A session here has an order of its own, and
    answers a partition that the request names even if nothing changed."""
    flat = []
    for topic in tree.get("responses", ()):
        for part in topic["partitions"]:
            place = {key: topic[key] for key in ("topic", "topic_id") if key in topic}
            if not part["records"]:
                part = {key: value for key, value in part.items() if key != "aborted_transactions"}
            flat.append({**place, **part})
    if isinstance(tree.get("session_id"), str):
        return {**tree, "responses": sorted(filter(_has_news, flat), key=dump)}
    known = [each for each in flat if each["error_code"] not in (3, 100)]
    others = [each for each in flat if each["error_code"] in (3, 100)]
    return {**tree, "responses": [*known, *sorted(others, key=dump)]}


def _has_news(part: Tree) -> bool:
    return bool(part["records"] or part["error_code"] or "diverging_epoch" in part)


def _create_topics(step: Step, tree: Tree) -> Tree:
    """There is no remote storage here, and none of its configs. Where Kafka only validates, it
    gives an id that no topic ever has."""
    topics = []
    for topic in tree.get("topics", ()):
        if step.request.get("validate_only"):
            topic = {key: value for key, value in topic.items() if key != "topic_id"}
        if topic.get("configs"):
            kept = [each for each in topic["configs"] if each["name"] not in NOT_OURS]
            topic = {**topic, "configs": kept}
        topics.append(topic)
    return {**tree, "topics": topics}


def _describe_configs(step: Step, tree: Tree) -> Tree:
    """As for created topics. There is no documentation here, and no key of a broker that may be
    changed."""
    results = []
    for result in tree.get("results", ()):
        left_out = ["documentation"] + ["read_only"] * (result.get("resource_type") == BROKER)
        kept = [
            {key: value for key, value in each.items() if key not in left_out}
            for each in result.get("configs", ())
            if each["name"] not in NOT_OURS
        ]
        results.append({**result, "configs": kept})
    return {**tree, "results": sorted(results, key=dump)}


def _elect_leaders(step: Step, tree: Tree) -> Tree:
    """Kafka names each topic that there is, where nothing was elected, too."""
    results = tree.get("replica_election_results", ())
    elected = [each for each in results if each.get("partition_result")]
    return {**tree, "replica_election_results": elected}


def _alter_configs(step: Step, tree: Tree) -> Tree:
    """A broker reads its configuration at its start, and refuses to change it."""
    topics = [each for each in tree.get("responses", ()) if each.get("resource_type") != BROKER]
    return {**tree, "responses": topics}


RULES = {
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.FETCH: _fetch,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
}
