"""The role `webhooks`: `python -m results.webhooks`."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import asyncio
    import logging
    import math
    import os
    import random
    import secrets
    import ssl
    import sys
    import threading
    from collections.abc import Mapping
    from typing import Final

    from core.clock import Clock, SystemClock
    from core.errors import SettingsError
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.open_files import raise_open_file_limit
    from core.runtime.role_lifecycle import report_ready, run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from jobs.commit_checks import start_commit_checks
    from jobs.estimates.pool_rates import PoolRates
    from jobs.supervised_threads import SupervisedThreads
    from results.__main__ import check_pool_size, process_name
    from results.webhooks.delivery.attempt_recording import AttemptRecorder
    from results.webhooks.delivery.deliverer import DATABASE_THREADS, Deliverer
    from results.webhooks.delivery.http_sender import HttpSender
    from results.webhooks.delivery.message_removal import MessageRemoval
    from results.webhooks.endpoints.address_policy import address_policy
    from results.webhooks.endpoints.name_resolution import DnsLookups, system_resolver
    from results.webhooks.endpoints.signing_secrets import SecretCipher
    from results.webhooks.events.event_reader import GROUP, JobEventReader
    from results.webhooks.events.progress_estimates import CapacityReports, ProgressEstimates
    from results.webhooks.events.progress_watch import ProgressWatcher
    from results.webhooks.settings import WebhookSettings
    from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
    from storage.postgres.settings import DatabaseSettings
    from topics.clients.admin import TopicAdmin
    from topics.clients.consumer import GroupConsumer
    from topics.clients.producer import RecordProducer
    from topics.clients.start_check import check_topics, topics_of_role
    from topics.records.catalogue import CAPACITY, EVENTS
    from topics.settings import KafkaSettings
    from topics.tail_readers.tail_reader_thread import TailReaderThread
    from topics.tail_readers.topic_tail_reader import TopicTailReader

LOG = logging.getLogger(__name__)

ROLE: Final = GROUP
_BROKER_WAIT_S: Final = 60.0
_JOIN_S: Final = 5.0
_REMOVAL_INTERVAL_S: Final = 600.0
_LOOKUPS_MAX: Final = 256  # threads, started when needed
_LOOKUP_FILES: Final = 2
_OTHER_FILES: Final = 256  # Postgres, Kafka, metrics and the interpreter
_OTHER_CONNECTIONS: Final = 3  # reader, watcher, removal


def main(env: Mapping[str, str]) -> int:
    """Run the role until a signal; return the exit code."""
    configure_logs(ROLE)
    stop = stop_on_signals()
    return run_role(lambda: run(env, stop), unavailable=DATABASE_UNAVAILABLE)


def run(env: Mapping[str, str], stop: threading.Event) -> None:
    """Record events and deliver messages until `stop`.

    Raises SettingsError, KafkaUnavailableError, SchemaTooNewError, DeliveryError, and one of
    DATABASE_UNAVAILABLE after `database_wait_s`.
    """
    settings, kafka, database = read_all(
        env, WebhookSettings.from_env, KafkaSettings.from_env, DatabaseSettings.from_env
    )
    keys = settings.keys()
    if not keys:
        raise SettingsError(f"{settings.env_prefix}SECRET_KEY is required to sign webhooks")
    if settings.allow_private:
        LOG.warning("webhooks may reach private addresses: for development only")
    check_pool_size(database, DATABASE_THREADS + _OTHER_CONNECTIONS)
    lookups_max = min(settings.slots_max, _LOOKUPS_MAX)
    check_open_files(settings.slots_max, lookups_max)
    serve_metrics(settings)
    check_topics(TopicAdmin(kafka), topics_of_role(ROLE), broker_wait_s=_BROKER_WAIT_S)
    engine = create_engine(database, application_name=ROLE)
    name = process_name(ROLE)
    clock = SystemClock()
    background = SupervisedThreads(stop, away_s_max=settings.database_wait_s, clock=clock)
    start_commit_checks(background, engine, clock)
    deliverer = Deliverer(
        engine=engine,
        dns=DnsLookups(system_resolver, count_max=lookups_max),
        sender=HttpSender(
            policy=address_policy(settings),
            tls=ssl.create_default_context(),
            timeout_s=settings.timeout_s,
        ),
        cipher=SecretCipher(keys, secrets.token_bytes),
        recorder=AttemptRecorder(settings, random.random),
        settings=settings,
        clock=clock,
        holder=name,
    )
    producer = RecordProducer(kafka, client_id=name, waits_for_partitions=True)
    consumer = GroupConsumer(
        kafka,
        group=GROUP,
        topics=[EVENTS.name],
        client_id=name,
        on_assign=lambda _: None,
        on_revoke=lambda partitions: reader.on_revoke(partitions),  # noqa: PLW0108  built below
    )
    reader = JobEventReader(engine, consumer, producer, deliverer.wake)
    watcher = ProgressWatcher(engine, settings.watch_interval_s, deliverer.wake, stop.is_set)
    capacity = start_estimates(watcher, kafka, name, clock)
    removal = MessageRemoval(engine, settings.retention_days, stop.is_set)
    background.start_periodic(0, "events", reader.run_once)
    background.start_periodic(settings.watch_interval_s, "watches", watcher.run_once)
    background.start_periodic(_REMOVAL_INTERVAL_S, "removal", removal.run_once)
    try:
        report_ready()
        asyncio.run(deliverer.run(stop))
    finally:
        stop.set()
        try:
            background.join(_JOIN_S)
        finally:
            capacity.stop()
            consumer.close()
            producer.close()
            engine.dispose()


def start_estimates(
    watcher: ProgressWatcher, kafka: KafkaSettings, name: str, clock: Clock
) -> TailReaderThread:
    """Let progress messages carry estimates; return the thread that reads `capacity` for them.

    While Kafka is unavailable the thread tries again without end, and the rates are unknown after
    a minute. Another failure, such as a missing right, ends the thread and not the role.
    """
    rates = PoolRates()
    watcher.start_estimates = ProgressEstimates(rates, clock).start_slice
    reader = TopicTailReader(kafka, CAPACITY, client_id=f"{name}-capacity", reset_to_earliest=False)
    thread = TailReaderThread(
        reader,
        CapacityReports(rates, clock, lambda: not reader.unreadable_partitions).receive,
        name="capacity-tail",
        unavailable_s_max=math.inf,
        on_failure=lambda failure: LOG.error("no rates", extra={"reason": str(failure)}),
    )
    thread.start_at_end()
    return thread


def check_open_files(slots_max: int, lookups_max: int) -> None:
    """Raise the limit of open files so that every attempt can connect. Raises SettingsError."""
    needed = slots_max + _LOOKUP_FILES * lookups_max + _OTHER_FILES
    allowed = raise_open_file_limit(needed)
    if allowed < needed:
        raise SettingsError(
            f"{WebhookSettings.env_prefix}SLOTS_MAX={slots_max} needs {needed} open files and "
            f"{allowed} are allowed: raise the hard limit (ulimit -Hn), or lower SLOTS_MAX"
        )


if __name__ == "__main__":
    sys.exit(main(os.environ))
