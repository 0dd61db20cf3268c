"""One rehearsal of the broker, so that each later start of it costs at least a third less.

A broker spends most of a start on loading, linking and compiling the same classes every time. Java
writes what one run has loaded, and how it was used, into a cache for the runs that follow (JEP 483,
514, 515). It is kept beside the jars; without it, or with one that does not fit, a broker starts as
ever. `make jars` fetches and rehearses: a first start of `millrace up` should not wait 20 s to make
the next one shorter.
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
from cli.stack.services.embedded_kafka import READY_S_MAX, EmbeddedKafka
from cli.stack.services.java_command import aot_cache_path
from cli.stack.state.data_folder import cache_dir, file_lock
from core.errors import MillraceError
from topics.clients.admin import LogAdmin
from topics.clients.consumer import LogConsumer
from topics.clients.producer import LogProducer
from topics.records.catalogue import RESULTS, SHARED_TOPICS
from topics.settings import CLIENT_LOG, KafkaSettings

_LOG = logging.getLogger(__name__)

RECORDS = 500
"""Read and written one by one, by a group of each kind: what an idle stack's broker does."""

WORK_S_MAX = 30.0
END_S_MAX = 120.0
"""At its end the broker writes the cache, which takes 5 to 15 s."""

_POLL_S = 0.1


def ensure_aot_cache(cache: Path) -> None:
    """Rehearse unless there is a cache below `cache`; two that come at once rehearse one time.

    A rehearsal that fails is told and changes nothing. Raises what `cached_jars` raises.
    """
    kept = aot_cache_path(cached_jars(cache))
    with file_lock(cache / "kafka-rehearsal.lock"):
        if kept.exists():
            return
        with tempfile.TemporaryDirectory(dir=cache, prefix="kafka-rehearsal-") as folder:
            made = Path(folder) / "made.aot"
            try:
                _rehearse(cache, Path(folder), made)
                made.rename(kept)
            except (MillraceError, OSError) as failure:
                _LOG.warning("no rehearsal: brokers start as ever: %s", failure)


def _rehearse(cache: Path, folder: Path, made: Path) -> None:
    broker = EmbeddedKafka(folder, cache)
    broker.prepare()
    child = broker.child(java_options=(f"-XX:AOTCacheOutput={made}",))
    child = replace(
        child,  # profiles are written by a compiler that is not held back
        env={**child.env, "JDK_JAVA_OPTIONS": ""},
        parent_death_signal=signal.SIGKILL,
    )
    process = spawn(child, folder)
    try:
        _await(lambda: broker.is_ready() or process.has_ended(), READY_S_MAX)
        _work(broker.bootstrap_servers)
        process.send(signal.SIGTERM)
        _await(process.has_ended, END_S_MAX)
    finally:
        process.kill_and_reap()


def _await(check: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline_s:
            raise StackTimeoutError(f"The broker's rehearsal took more than {timeout_s:g} s.")
        time.sleep(_POLL_S)


def _work(servers: str) -> None:
    """Create topics, write to one, and read it as a group of each kind."""
    kafka = KafkaSettings(bootstrap_servers=servers)
    LogAdmin(kafka).wait_for_broker(WORK_S_MAX)
    LogAdmin(kafka).create(SHARED_TOPICS)
    producer = LogProducer(kafka, client_id="rehearsal", linger_ms=0)
    try:
        for number in range(RECORDS):
            producer.send(RESULTS.name, b"rehearsal", partition=number % RESULTS.partition_count)
            producer.flush(WORK_S_MAX)
    finally:
        producer.close()
    for protocol in ("classic", "consumer"):
        _read(servers, protocol)


def _read(servers: str, protocol: Literal["classic", "consumer"]) -> None:
    consumer = LogConsumer(
        KafkaSettings(bootstrap_servers=servers, group_protocol=protocol),
        group=f"rehearsal-{protocol}",
        topics=[RESULTS.name],
        client_id="rehearsal",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    deadline_s, seen = time.monotonic() + WORK_S_MAX, 0
    try:
        while seen < RECORDS and time.monotonic() < deadline_s:
            for record in consumer.poll(1, _POLL_S):
                seen += 1
                consumer.commit({(record.topic, record.partition): record.offset + 1})
    finally:
        consumer.close()


if __name__ == "__main__":
    CLIENT_LOG.setLevel(logging.CRITICAL)  # a broker that has just begun refuses a few questions
    ensure_aot_cache(cache_dir(os.environ))
