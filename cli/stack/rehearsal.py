"""Creates the class data archive (AOT cache) of the broker: `python -m cli.stack.rehearsal`.

A broker spends most of its start loading, linking and compiling the same classes. In one warm-up
run Java records the loaded classes and their profiles in an AOT cache for later runs (JEP 483, 514,
515), which makes each later start at least a third shorter. The cache is stored next to the jars.
Without a cache that fits, a broker starts normally. `make jars` runs this module; `millrace up`
does not, because a warm-up run takes 20 s.
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

from cli.stack.data_folder import cache_dir, file_lock
from cli.stack.errors import StackTimeoutError
from cli.stack.jars import cached_jars
from cli.stack.processes.child import spawn
from cli.stack.services.embedded_kafka import READY_S_MAX, EmbeddedKafka, aot_cache_path
from core.errors import MillraceError
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS, SHARED_TOPICS
from topics.settings import CLIENT_LOG, KafkaSettings

_LOG = logging.getLogger(__name__)

RECORDS = 500
"""Records written, and read one by one by a group of each protocol, as in an idle stack."""

WORK_S_MAX = 30.0
END_S_MAX = 120.0
"""The broker writes the cache when it stops, which takes 5 to 15 s."""

_POLL_S = 0.1


def ensure_aot_cache(cache: Path) -> None:
    """Create the AOT cache below `cache` unless it exists; concurrent callers create it once.

    A failed warm-up run is logged and changes nothing. Raises the errors of `cached_jars`.
    """
    target = aot_cache_path(cached_jars(cache))
    with file_lock(cache / "kafka-rehearsal.lock"):
        if target.exists():
            return
        with tempfile.TemporaryDirectory(dir=cache, prefix="kafka-rehearsal-") as folder:
            aot_cache = Path(folder) / "new.aot"
            try:
                _run_broker(cache, Path(folder), aot_cache)
                aot_cache.rename(target)
            except (MillraceError, OSError) as failure:
                _LOG.warning("no rehearsal: brokers start as ever: %s", failure)


def _run_broker(cache: Path, folder: Path, aot_cache: Path) -> None:
    broker = EmbeddedKafka(folder, cache)
    broker.prepare()
    child = broker.child(java_options=(f"-XX:AOTCacheOutput={aot_cache}",))
    child = replace(
        child,  # unrestricted compilers record better profiles
        env={**child.env, "JDK_JAVA_OPTIONS": ""},
        parent_death_signal=signal.SIGKILL,
    )
    process = spawn(child, folder)
    try:
        _wait_until(lambda: broker.is_ready() or process.has_ended(), READY_S_MAX)
        _exchange_records(broker)
        process.send(signal.SIGTERM)
        _wait_until(process.has_ended, END_S_MAX)
    finally:
        process.kill_and_reap()


def _wait_until(is_true: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline_s:
            raise StackTimeoutError(f"The broker's warm-up run took more than {timeout_s:g} s.")
        time.sleep(_POLL_S)


def _exchange_records(broker: EmbeddedKafka) -> None:
    """Create topics, write to one, and read it with a group of each protocol."""
    kafka = broker.client_settings
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
        _read(kafka, protocol)


def _read(kafka: KafkaSettings, protocol: Literal["classic", "consumer"]) -> None:
    consumer = GroupConsumer(
        kafka.model_copy(update={"group_protocol": protocol}),
        group=f"rehearsal-{protocol}",
        topics=[RESULTS.name],
        client_id="rehearsal",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    deadline_s, read_count = time.monotonic() + WORK_S_MAX, 0
    try:
        while read_count < RECORDS and time.monotonic() < deadline_s:
            for record in consumer.poll(1, _POLL_S):
                read_count += 1
                consumer.commit({(record.topic, record.partition): record.offset + 1})
    finally:
        consumer.close()


if __name__ == "__main__":
    CLIENT_LOG.setLevel(logging.CRITICAL)  # a starting broker refuses the first requests
    ensure_aot_cache(cache_dir(os.environ))
