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


ALL = {
    ApiKey.METADATA: ("topics", "name"),
    ApiKey.LIST_GROUPS: ("groups", "group_id"),
}
"""Answers that may hold what other sequences made, and its names."""


def comparable(step: Step, tree: Tree) -> Tree:
    """``tree`` without what may differ."""
    if not isinstance(tree, dict):
        return tree
    if step.key in ALL and step.request.get("topics") is None:
        field, name = ALL[step.key]
        tree = {**tree, field: _own(step, tree.get(field, ()), name)}
    if step.key is ApiKey.DESCRIBE_LOG_DIRS and step.request.get("topics") is None:
        results = [
            {**each, "topics": _own(step, each.get("topics", ()), "name")}
            for each in tree.get("results", ())
        ]
        tree = {**tree, "results": results}
    return RULES[step.key](tree) if step.key in RULES else tree


def _own(step: Step, found: Tree, name: str) -> Tree:
    return [each for each in found if each[name].startswith(step.client)]


def _fetch(tree: Tree) -> Tree:
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


def _create_topics(tree: Tree) -> Tree:
    """There is no remote storage here, and none of its configs."""
    topics = []
    for topic in tree.get("topics", ()):
        if topic.get("configs"):
            kept = [each for each in topic["configs"] if each["name"] not in NOT_OURS]
            topic = {**topic, "configs": kept}
        topics.append(topic)
    return {**tree, "topics": topics}


def _describe_configs(tree: Tree) -> Tree:
    """As for created topics. The documentation is in our own words."""
    results = []
    for result in tree.get("results", ()):
        kept = [
            {key: value for key, value in each.items() if key != "documentation"}
            for each in result.get("configs", ())
            if each["name"] not in NOT_OURS
        ]
        results.append({**result, "configs": kept})
    return {**tree, "results": results}


RULES = {
    ApiKey.FETCH: _fetch,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
}
