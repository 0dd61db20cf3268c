"""A training run of the broker for Java's AOT cache, which makes later starts a third faster.

A broker spends most of its start on loading, linking and compiling the same classes. Java can write
the classes and profiles of one run into a cache for later runs (JEP 483, 514, 515). The cache is
stored next to the jars; without a matching cache a broker just starts slower. `make jars` runs
this, because it takes 20 s that a first `millrace up` should not wait.
"""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cli.stack.errors import StackTimeoutError
from cli.stack.jars import cached_jars
from cli.stack.processes.child import spawn
from cli.stack.services.java import aot_cache_path
from cli.stack.services.kafka import READY_S_MAX, EmbeddedKafka
from cli.stack.state.data_folder import cache_dir, file_lock
from core.errors import MillraceError
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS, SHARED_TOPICS
from topics.settings import CLIENT_LOG, KafkaSettings

_LOG = logging.getLogger(__name__)

RECORDS = 500
"""Records written and read one by one, by a group of each protocol, as in an idle stack."""

WORK_S_MAX = 30.0
END_S_MAX = 120.0
"""The broker writes the cache when it ends, which takes 5 to 15 s."""

_POLL_S = 0.1


def ensure_aot_cache(cache: Path) -> None:
    """Create the AOT cache below `cache` unless it exists; concurrent calls create it once.

    A failure is logged and changes nothing. Raises as `cached_jars` does.
    """
    aot_cache = aot_cache_path(cached_jars(cache))
    with file_lock(cache / "kafka-rehearsal.lock"):
        if aot_cache.exists():
            return
        with tempfile.TemporaryDirectory(dir=cache, prefix="kafka-rehearsal-") as folder:
            new_cache = Path(folder) / "made.aot"
            try:
                _run_training(cache, Path(folder), new_cache)
                new_cache.rename(aot_cache)
            except (MillraceError, OSError) as failure:
                _LOG.warning("no rehearsal: brokers start as ever: %s", failure)


def _run_training(cache: Path, folder: Path, new_cache: Path) -> None:
    broker = EmbeddedKafka(folder, cache)
    broker.prepare()
    child = broker.child(java_options=(f"-XX:AOTCacheOutput={new_cache}",))
    child = replace(
        child,  # without the compiler limits, which would reduce the profiles
        env={**child.env, "JDK_JAVA_OPTIONS": ""},
        dies_by=signal.SIGKILL,
    )
    process = spawn(child, folder)
    try:
        _wait_until(lambda: broker.is_ready() or process.has_ended(), READY_S_MAX)
        _use_broker(broker.bootstrap_servers)
        process.send(signal.SIGTERM)
        _wait_until(process.has_ended, END_S_MAX)
    finally:
        process.reap()


def _wait_until(check: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline_s:
            raise StackTimeoutError(f"The broker's rehearsal took more than {timeout_s:g} s.")
        time.sleep(_POLL_S)


def _use_broker(servers: str) -> None:
    """Create topics, write to one, and read it as a group of each protocol."""
    kafka = KafkaSettings(bootstrap_servers=servers)
    TopicAdmin(kafka).wait_for_broker(WORK_S_MAX)
    TopicAdmin(kafka).create(SHARED_TOPICS)
    producer = RecordProducer(kafka, client_id="rehearsal", linger_ms=0)
    try:
        for number in range(RECORDS):
            producer.send(RESULTS.name, b"rehearsal", partition=number % RESULTS.partition_count)
            producer.flush(WORK_S_MAX)
    finally:
        producer.close()
    for protocol in ("classic", "consumer"):
        _read(servers, protocol)


def _read(servers: str, protocol: Literal["classic", "consumer"]) -> None:
    consumer = GroupConsumer(
        KafkaSettings(bootstrap_servers=servers, group_protocol=protocol),
        group=f"rehearsal-{protocol}",
        topics=[RESULTS.name],
        client_id="rehearsal",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    deadline_s, count = time.monotonic() + WORK_S_MAX, 0
    try:
        while count < RECORDS and time.monotonic() < deadline_s:
            for record in consumer.poll(1, _POLL_S):
                count += 1
                consumer.commit({(record.topic, record.partition): record.offset + 1})
    finally:
        consumer.close()


if __name__ == "__main__":
    CLIENT_LOG.setLevel(logging.CRITICAL)  # a starting broker refuses some requests
    ensure_aot_cache(cache_dir(os.environ))
