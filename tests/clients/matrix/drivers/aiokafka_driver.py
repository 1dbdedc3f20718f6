"""aiokafka, which speaks old versions of the protocol, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib

import common
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
)

TIMEOUT_S = 60
_REBALANCED = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError)


async def _produce(bootstrap: str, step: common.Step) -> None:
    acks = step.get("acks", "all")
    codec = step.get("codec", "none")
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks=acks if acks == "all" else int(acks),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=step.get("idempotent", False) or "transactional_id" in step,
        transactional_id=step.get("transactional_id"),
        linger_ms=2,
    )
    await producer.start()
    try:
        if "transactional_id" in step:
            await _transact(producer, step)
            return
        sent = set()
        for record in common.records(_without_pauses(step)):
            await _pause(step)  # in which the event loop sends
            future = await _send(producer, step["topic"], *record)
            sent.add(asyncio.ensure_future(_acknowledged(future, record[1])))
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


def _without_pauses(step: common.Step) -> common.Step:
    return {**step, "pause_ms": 0}


async def _pause(step: common.Step) -> None:
    await asyncio.sleep(step.get("pause_ms", 0) / 1000)


async def _send(producer, topic, key, value, partition, timestamp):
    return await producer.send(
        topic, value.encode(), key.encode(), partition, timestamp_ms=timestamp
    )


async def _acknowledged(future, value: str) -> None:
    try:
        await future
    except KafkaError as error:
        common.answer(failed=value, error=repr(error))
    else:
        common.answer(acked=value)


async def _transact(producer: AIOKafkaProducer, step: common.Step) -> None:
    for commit, records in common.transactions(_without_pauses(step)):
        values = [record[1] for record in records]
        try:
            await producer.begin_transaction()
            sent = []
            for record in records:
                await _pause(step)
                sent.append(await _send(producer, step["topic"], *record))
            await asyncio.gather(*sent)
            if commit:
                await producer.commit_transaction()
                common.answer(committed=values)
                continue
        except KafkaError as error:
            common.answer(unknown=values, error=repr(error))
            raise
        await producer.abort_transaction()
        common.answer(aborted=values)


def _consumer(bootstrap: str, step: common.Step) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=step.get("group"),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=step.get("isolation", "read_uncommitted"),
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )


async def _take(consumer: AIOKafkaConsumer, until: common.Until) -> bool:
    batches = await consumer.getmany(timeout_ms=100)
    for batch in batches.values():
        for each in batch:
            common.read(each.value, each.key, each.partition, each.offset, each.timestamp)
        until.took(len(batch))
    return bool(batches)


async def _read(bootstrap: str, step: common.Step) -> None:
    consumer = _consumer(bootstrap, step)
    await consumer.start()
    partitions = [TopicPartition(step["topic"], p) for p in range(step["partitions"])]
    consumer.assign(partitions)
    if "since_ms" in step:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, step["since_ms"]))
        for partition, offset in found.items():
            if offset is None:
                await consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, offset.offset)
    else:
        await consumer.seek_to_beginning()
    until = common.Until(step)
    while until.goes_on:
        await _take(consumer, until)
    await consumer.stop()


async def _group(bootstrap: str, step: common.Step) -> None:
    consumer = _consumer(bootstrap, step)

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            common.answer(assigned=sorted(each.partition for each in assigned))

        def on_partitions_revoked(self, revoked):
            pass  # what was read is committed already

    consumer.subscribe([step["topic"]], listener=Listener())
    await consumer.start()
    until = common.Until(step)
    while until.goes_on:
        if await _take(consumer, until):
            # Another member has the partitions now, and reads on from the last commit.
            with contextlib.suppress(*_REBALANCED):
                await consumer.commit()
    await consumer.stop()


async def _admin(bootstrap: str, step: common.Step) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    topic = step["topic"]
    new = NewTopic(topic, 3, 1, topic_configs={"retention.ms": "123456"})
    await client.create_topics([new])
    (described,) = await client.describe_topics([topic])
    answers = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    entries = answers[0].resources[0][4]
    common.answer(
        partitions=len(described["partitions"]),
        retention_ms={entry[0]: entry[1] for entry in entries}["retention.ms"],
        listed=topic in await client.list_topics(),
    )
    await client.delete_topics([topic])
    common.answer(listed_after=topic in await client.list_topics())
    await client.close()


def _running(step):
    return lambda bootstrap, fields: asyncio.run(step(bootstrap, fields))


common.main(
    {
        "produce": _running(_produce),
        "read": _running(_read),
        "group": _running(_group),
        "admin": _running(_admin),
    }
)
