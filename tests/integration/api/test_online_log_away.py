"""Goal: while the log is unavailable calls are refused at once, and soon afterwards they run."""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.stacks.services import running_child
from cli.stack.data_folder import cache_dir
from cli.stack.services import embedded_kafka as stack_kafka
from tests.integration.api.online_site import Online, opened
from tests.integration.api.pool import answer_at_once, say_nothing
from topics.settings import CLIENT_LOG, KafkaSettings

FAILURE_S_MAX = 60.0
RECOVERY_S_MAX = 90.0
"""Each takes 1 to 2 s, and several times that when other tests fill the machine."""


@pytest.mark.timeout(270)
def test_a_broker_restart(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, CLIENT_LOG.name)  # one line for each refused connection
    broker = stack_kafka.EmbeddedKafka(tmp_path / "log", cache_dir(os.environ), is_open=True)
    broker.prepare()
    with running_child(broker.child(), tmp_path / "first") as first:
        first.wait_until(broker.is_ready, timeout_s=stack_kafka.READY_S_MAX, what="Kafka")
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
        with (
            opened(kafka, database_url, tmp_path / "objects") as online,
            ThreadPoolExecutor(1) as thread,
        ):
            online.call().raise_for_status()
            online.pool.script = say_nothing
            waiting = thread.submit(online.call)
            online.pool.wait_for(lambda: len(online.pool.chunks) == 2)
            first.stop()

            lost = waiting.result(FAILURE_S_MAX)
            assert lost.json()["error"]["code"] == "log_unavailable"
            assert lost.status_code == 503
            fastest_s = min(refuse(online) for _ in range(3))
            assert fastest_s < 5

            online.pool.script = answer_at_once
            with running_child(broker.child(), tmp_path / "second") as second:
                second.wait_until(broker.is_ready, timeout_s=stack_kafka.READY_S_MAX, what="Kafka")
                # The played pool sends an answer once: one that the restart loses never comes.
                bounded = {"timeout_ms": 10_000}
                online.pool.wait_for(
                    lambda: online.call(bounded).status_code == 200, RECOVERY_S_MAX
                )


def refuse(online: Online) -> float:
    """Make a call that is refused; return how long that takes, in seconds."""
    began_s = time.monotonic()
    refused = online.call()
    elapsed_s = time.monotonic() - began_s
    assert refused.json()["error"]["code"] in {"log_unavailable", "no_capacity"}
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    return elapsed_s
