"""The roles `results-writer` and `finaliser`: `python -m results writer|finaliser`."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import os
    import socket
    import sys
    import threading
    from collections.abc import Callable, Mapping
    from functools import partial
    from typing import Final

    from core.clock import SystemClock
    from core.errors import SettingsError
    from core.ids import new_uuid
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.role_lifecycle import report_ready, run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from jobs.commit_checks import start_commit_checks
    from jobs.leasing.active_leases import ActiveLeases
    from jobs.recovery.retry_policy import RetryRules
    from jobs.supervised_threads import SupervisedThreads
    from results.finaliser.finaliser import CHANNEL, ROLE, Finaliser
    from results.finaliser.request_finaliser import CHANNEL as REQUESTS
    from results.finaliser.request_finaliser import RequestFinaliser
    from results.retention.object_removal import IdempotencyKeyRemoval
    from results.retention.sweep import RetentionSweep
    from results.settings import FinaliserSettings, RetentionSettings, WriterSettings
    from results.tables import billed_calls
    from results.writer.call_billing import write_bills
    from results.writer.copied_results import CopyWriter
    from results.writer.crash_budgets import CrashBudgets
    from results.writer.day_partitions import DayPartitions
    from results.writer.item_writer import ItemWriter
    from results.writer.job_closer import JobCloser
    from results.writer.writer import GROUP, OutcomeRouter, ResultsWriter
    from storage.objects.open_store import object_store_from_env
    from storage.objects.s3_patience import BACKGROUND_PAUSES, UploadPatience
    from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
    from storage.postgres.notifications import NotificationListener
    from storage.postgres.settings import DatabaseSettings
    from topics.clients.admin import TopicAdmin
    from topics.clients.consumer import GroupConsumer
    from topics.clients.producer import RecordProducer
    from topics.clients.start_check import check_topics, topics_of_role
    from topics.records.catalogue import RESULTS
    from topics.settings import KafkaSettings

_BROKER_WAIT_S: Final = 60.0
_JOIN_S: Final = 5.0


def main(arguments: list[str]) -> int:
    """Run one role until a signal; return the exit code, 2 for a wrong argument."""
    if len(arguments) != 1 or arguments[0] not in ROLES:
        sys.stderr.write("usage: python -m results writer|finaliser\n")
        return 2
    role, run = ROLES[arguments[0]]
    configure_logs(role)
    stop = stop_on_signals()
    return run_role(lambda: run(os.environ, stop), unavailable=DATABASE_UNAVAILABLE)


def run_writer(env: Mapping[str, str], stop: threading.Event) -> None:
    """Run the writer until `stop`. Raises what `ResultsWriter.run` raises, and SettingsError."""
    settings, kafka, database = read_all(
        env, WriterSettings.from_env, KafkaSettings.from_env, DatabaseSettings.from_env
    )
    check_pool_size(database, 2)  # one to write, one to create a day's partition
    engine = create_engine(database, application_name=GROUP)
    serve_metrics(settings)
    check_topics(TopicAdmin(kafka), topics_of_role(GROUP), broker_wait_s=_BROKER_WAIT_S)
    clock = SystemClock()
    background = SupervisedThreads(stop, away_s_max=settings.database_wait_s, clock=clock)
    start_commit_checks(background, engine, clock)
    name = process_name(GROUP)
    producer = RecordProducer(kafka, client_id=name, waits_for_partitions=True)
    partitions = DayPartitions(engine)
    retries = RetryRules(
        attempts_max=settings.attempts_max,
        backoff_s=settings.retry_backoff_s,
        backoff_s_max=settings.retry_backoff_s_max,
    )
    writer = ResultsWriter(
        router=OutcomeRouter(
            items=ItemWriter(engine, partitions, retries=retries),
            closes=JobCloser(engine, partitions, slice_items=settings.close_slice_items),
            copies=CopyWriter(engine),
        ),
        bill=partial(write_bills, engine, DayPartitions(engine, billed_calls)),
        count_process_ends=CrashBudgets(engine, settings.quarantine_s).count_process_ends,
        producer=producer,
        settings=settings,
        commit_interval_s=kafka.commit_interval_s,
        clock=clock,
    )
    consumer = GroupConsumer(
        kafka,
        group=GROUP,
        topics=[RESULTS.name],
        client_id=name,
        on_assign=lambda _: None,
        on_revoke=writer.on_revoke,
        fetch_bytes_min=settings.fetch_bytes_min,
        fetch_wait_s=settings.fetch_wait_s,
    )
    try:
        report_ready()
        writer.run(consumer, stop)
        background.join(_JOIN_S)
    finally:
        stop.set()
        consumer.close()
        producer.close()
        engine.dispose()


def run_finaliser(env: Mapping[str, str], stop: threading.Event) -> None:
    """Run the finaliser until `stop`. Raises what `Finaliser.run` raises, and SettingsError."""
    patience = UploadPatience(BACKGROUND_PAUSES, stop.wait)
    settings, database, retention, store = read_all(
        env,
        FinaliserSettings.from_env,
        DatabaseSettings.from_env,
        RetentionSettings.from_env,
        partial(object_store_from_env, patience=patience),
    )
    # Claims, heartbeats, file removal, orphan sweep, retention, requests.
    check_pool_size(database, settings.jobs_max + 6)
    engine = create_engine(database, application_name=ROLE)
    serve_metrics(settings)
    clock = SystemClock()
    finaliser = Finaliser(
        engine=engine,
        store=store,
        leases=ActiveLeases(engine, role=ROLE, holder=process_name(ROLE), ttl_s=settings.lease_s),
        settings=settings,
        clock=clock,
    )
    background = SupervisedThreads(stop, away_s_max=settings.database_wait_s, clock=clock)
    start_commit_checks(background, engine, clock)
    keys = IdempotencyKeyRemoval(engine, store)
    sweep = RetentionSweep(engine, store, retention, process_name(ROLE), stop.is_set)

    def remove_old_data() -> None:  # both share a thread and a connection
        keys.run_once()
        sweep.run_once()

    try:
        with (
            NotificationListener(database, CHANNEL, application_name=ROLE) as for_jobs,
            NotificationListener(database, REQUESTS, application_name=ROLE) as for_requests,
        ):
            wait = partial(for_requests.wait, settings.look_interval_s)
            background.start("requests", RequestFinaliser(engine, store).run_once, wait)
            background.start_periodic(settings.removal_interval_s, "ages", remove_old_data)
            report_ready()
            finaliser.run(for_jobs, stop)
            background.join(_JOIN_S)
    finally:
        engine.dispose()


def check_pool_size(database: DatabaseSettings, count: int) -> None:
    """Raises SettingsError for a pool with fewer connections than the role's threads need."""
    if database.pool_size < count:
        raise SettingsError(f"{database.env_prefix}POOL_SIZE: this role needs at least {count}")


def process_name(role: str) -> str:
    """Return a name unique to this process, for leases and the broker's logs."""
    return f"{role}-{socket.gethostname()}-{new_uuid().hex[:8]}"


ROLES: Final[dict[str, tuple[str, Callable[[Mapping[str, str], threading.Event], None]]]] = {
    "writer": (GROUP, run_writer),
    "finaliser": (ROLE, run_finaliser),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
