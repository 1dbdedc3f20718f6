"""Processes are started, started again, and stopped in order (X-154); nothing is left."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from replication.supervisor.cluster_file import ClusterFile, EngineEntry
from replication.supervisor.planning import CONFIG
from replication.supervisor.processes import RestartRule
from tests.support.until import until
from tests.unit.supervisor.clusters import plan_in, running


def with_tree(plan: ClusterFile) -> ClusterFile:
    """The same on a tree that is started, at the port of the first page: it is moved away."""
    from replication.supervisor.planning import StartOptions, first_plan

    spare = first_plan("/", StartOptions(listen="127.0.0.1:0", engine="tree", brokers=1), {})
    return replace(plan, engine=EngineEntry(tree_port=spare.engine.tree_port))


def test_each_broker_gets_ready_and_all_stop_in_order(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    with running(tmp_path, plan) as cluster:
        said = cluster.until_said("ready")
        assert said["bootstrapServers"] == [each.bootstrap for each in plan.brokers]
        ready = cluster.until_said("ready", "broker 1")
        assert ready["bootstrapServers"] == [plan.brokers[1].bootstrap]
        assert ready["pid"] == cluster.pid(1)
        assert cluster.stop() == 0
    assert cluster.events[2:] == ["ended 0", "ended 1"]


def test_the_engine_comes_first_and_goes_last(tmp_path: Path) -> None:
    plan = with_tree(plan_in(tmp_path, 1))
    with running(tmp_path, plan) as cluster:
        cluster.until_said("ready")
        assert cluster.stop() == 0
    assert cluster.events == ["began coordinator", "began 0", "ended 0", "ended coordinator"]


def test_the_controller_is_stopped_last(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    with running(tmp_path, plan, find_controller=lambda brokers: 0) as cluster:
        cluster.until_said("ready")
        cluster.stop()
    assert cluster.events[2:] == ["ended 1", "ended 0"]


def test_a_question_without_an_answer_delays_no_stop(tmp_path: Path) -> None:
    def fails(brokers: object) -> int:
        raise AssertionError("it is not asked with one broker")

    plan = plan_in(tmp_path, 1)
    with running(tmp_path, plan, find_controller=fails) as cluster:
        cluster.until_said("ready")
        assert cluster.stop() == 0


def test_the_command_of_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one that anybody could give (X-1)."""
    monkeypatch.setenv("SOME_SECRET", "x")
    plan = plan_in(tmp_path, 1, num_partitions="4")
    (broker,) = plan.brokers
    broker = replace(broker, users="/etc/users", password_file="/etc/password")
    with running(tmp_path, replace(plan, brokers=(broker,))) as cluster:
        cluster.until_said("ready")
        process = psutil.Process(cluster.pid(0))
        assert process.cwd() == "/"
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    told = json.loads((tmp_path / "arguments-0").read_text())
    assert told["arguments"] == [
        "serve",
        "--broker-id=0",
        "--coordinator=zookeeper://nowhere:1",
        f"--dir={tmp_path}/broker-0",
        f"--listen={broker.listeners}",
        f"--http={broker.http}",
        "--json",
        "--users=/etc/users",
        "--inter-broker-password-file=/etc/password",
        "--config=inter.broker.listener.name=INTERNAL",
        "--config=listener.security.protocol.map=INTERNAL:PLAINTEXT",
        *(f"--config={key}={value}" for key, value in CONFIG.items()),
        "--config=num.partitions=4",
    ]
    assert "SOME_SECRET" not in told["environment"]


def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path, 1)) as cluster:
        cluster.until_said("ready")
        before = cluster.pid(0)
        os.kill(before, signal.SIGKILL)
        said = cluster.until_said("ready", "broker 0", count=2)
        assert said["pid"] != before
        assert "signal SIGKILL" in cluster.until_said("paused", "broker 0")["text"]
        assert cluster.stop() == 0


def test_one_that_dies_too_often_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    first, second = plan.brokers
    plan = replace(plan, brokers=(replace(first, config={"stub.exit": "1"}), second))
    with running(tmp_path, plan, rule=RestartRule(0.001, 0.002, deaths=3)) as cluster:
        said = cluster.until_said("failed", "broker 0")
        assert said["reason"] == "exit code 1: the stub ends with 1"
        cluster.until_said("ready", "broker 1")
        assert cluster.code is None
        assert cluster.stop() == 1
    assert cluster.events.count("began 0") == 3


def test_without_a_broker_it_ends(tmp_path: Path) -> None:
    rule = RestartRule(0.001, 0.001, deaths=2)
    with running(tmp_path, plan_in(tmp_path, 1, stub_exit="2"), rule=rule) as cluster:
        assert cluster.wait() == 1
    assert cluster.events == ["began 0", "began 0"]
    assert cluster.said[-1]["text"] == "error: no broker is left"


def test_an_engine_that_cannot_start_ends_it(tmp_path: Path) -> None:
    plan = with_tree(plan_in(tmp_path, 1))
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "events").mkdir()  # the stub fails to write there
    with running(tmp_path, plan, rule=RestartRule(0.001, 0.001, deaths=1)) as cluster:
        assert cluster.wait() == 1
    assert cluster.said[-1]["text"] == "error: without its coordinator the cluster cannot start"


def test_a_second_stop_ends_all_at_once(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path, stub_deaf="1")) as cluster:
        cluster.until_said("ready")
        pids = [cluster.pid(0), cluster.pid(1)]
        cluster.supervisor.stop()
        assert cluster.stop() == 130
    assert not any(map(psutil.pid_exists, pids))


def test_a_stop_does_not_wait_for_one_that_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path, stub_quiet="1")) as cluster:
        until(lambda: (tmp_path / "events").exists() and len(cluster.events) == 2)
        assert cluster.stop() == 0


def test_nothing_is_left_of_descriptors_and_processes(tmp_path: Path) -> None:
    here = psutil.Process()
    before = here.num_fds()
    with running(tmp_path, plan_in(tmp_path)) as cluster:
        cluster.until_said("ready")
        cluster.stop()
    assert here.num_fds() == before
    assert not here.children()
