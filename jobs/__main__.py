"""The role `intake`: reads its settings, creates its components and runs their threads."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import contextlib
    import os
    import random
    import socket
    import sys
    import threading
    from collections.abc import Mapping
    from functools import partial
    from typing import Final

    from core.bodies.body_limit_settings import BodyLimits
    from core.clock import Clock, SystemClock
    from core.commit_watermark import CHECK_INTERVAL_S
    from core.ids import new_uuid
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.role_lifecycle import report_ready, run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from jobs import metrics
    from jobs.expansion.expander import Expander
    from jobs.expansion.intake_loop import IntakeLoop
    from jobs.expansion.job_loads import ROLE
    from jobs.expansion.known_claims import KnownClaims
    from jobs.expansion.leased_jobs import LeasedJobs
    from jobs.expansion.load_cache import LoadCache
    from jobs.expansion.pool_capacity import POLL_INTERVAL_S, PoolCapacities
    from jobs.expansion.result_partitions import ResultPartitions
    from jobs.leasing.active_leases import ActiveLeases
    from jobs.outbox_relay import OutboxRelay
    from jobs.periodic import PRODUCERS, PeriodicDeps, create_leases, start_periodic_tasks
    from jobs.recovery.past_controls import INTERVAL_S, PastControls
    from jobs.settings import IntakeSettings
    from jobs.supervised_threads import SupervisedThreads
    from jobs.validation.feasibility import Feasibility
    from jobs.validation.validation_process import ValidationProcesses
    from jobs.validation.validator import LeasedValidation, Validator
    from jobs.watermark_publisher import WatermarkPublisher
    from storage.objects.object_store import ObjectStore
    from storage.objects.open_store import object_store_from_env
    from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
    from storage.postgres.notifications import NotificationListener
    from storage.postgres.settings import DatabaseSettings
    from topics.clients.admin import TopicAdmin
    from topics.clients.producer import PartitionSender, RecordProducer, close_producers
    from topics.clients.start_check import check_topics, topics_of_role
    from topics.records.catalogue import CAPACITY
    from topics.settings import KafkaSettings
    from topics.tail_readers.commit_watermarks import CommitWatermarkReader
    from topics.tail_readers.topic_tail_reader import TopicTailReader

_SWITCH_INTERVAL_S = 0.0005  # a large validation must not delay each small statement by 5 ms
_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 20.0
_NAME: Final = "intake"
_RELAY_IDLE_S: Final = 1.0
_DUE_CHECK_S: Final = 60.0
_CAPACITY_POLL_S: Final = 0.2


def main() -> int:
    """Run until a signal; return the exit code."""
    configure_logs(_NAME)
    stop = stop_on_signals()
    return run_role(lambda: run(os.environ, stop), unavailable=DATABASE_UNAVAILABLE)


def run(env: Mapping[str, str], stop: threading.Event) -> None:
    """Create the role from `env` and run it until `stop`. Raises the failure that stopped it."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    settings, kafka, database, objects, body_limits = _read_settings(env)
    holder, clock = f"{_NAME}-{socket.gethostname()}-{new_uuid().hex[:8]}", SystemClock()
    serve_metrics(settings)
    admin = TopicAdmin(kafka)
    check_topics(admin, topics_of_role(_NAME), broker_wait_s=_START_S_MAX)
    with contextlib.ExitStack() as closing:
        engine = create_engine(database, application_name=_NAME)
        closing.callback(engine.dispose)
        job_notifications = closing.enter_context(NotificationListener(database, "millrace_jobs"))
        new_rows = closing.enter_context(NotificationListener(database, "millrace_outbox"))
        producers = _producers(kafka, holder, closing)
        watermarks = CommitWatermarkReader(kafka, client_id=holder)
        closing.callback(watermarks.close)
        publisher = WatermarkPublisher(engine, watermarks, producers[1], clock)
        publisher.start(_START_S_MAX)
        tail = closing.enter_context(contextlib.closing(_capacity_tail(kafka, holder)))
        capacities, loads = PoolCapacities(clock), LoadCache(engine, ResultPartitions())
        leases = create_leases(engine, ROLE, holder, settings)
        metrics.JOBS_HELD.set_function(lambda: leases.count)
        leased_jobs, claims = LeasedJobs(engine, leases, clock), KnownClaims(engine, clock)
        processes = closing.enter_context(contextlib.closing(ValidationProcesses(clock)))
        validation = LeasedValidation(objects, leases, settings, stop, processes, body_limits)
        feasibility = Feasibility(engine, loads, capacities, claims.claim)
        intake = IntakeLoop(
            settings=settings,
            loads=loads,
            leased_jobs=leased_jobs,
            expander=Expander(
                engine,
                objects,
                producers[0],
                leased_jobs,
                clock,
                capacities.expected_output,
                claims.claim,
            ),
            validator=Validator(engine, validation, clock, feasibility),
            capacities=capacities,
            claims=claims,
            notifications=job_notifications,
            clock=clock,
            stop=stop,
        )
        relay = OutboxRelay(engine, producers[1], clock)
        threads = SupervisedThreads(stop, away_s_max=settings.away_s_max, clock=clock)
        _start_log_tasks(threads, publisher, _past_controls(kafka, producers[1], clock, stop))
        threads.start_periodic(leases.heartbeat_s, "heartbeat", leases.extend_all)
        threads.start_periodic(0.0, "capacity", partial(_read_capacity, tail, capacities))
        periodic = PeriodicDeps(
            settings=settings,
            engine=engine,
            objects=objects,
            validation=validation,
            holder=holder,
            leases=leases,
            capacities=capacities,
            loads=loads,
            admin=admin,
            clock=clock,
        )
        append_leases = start_periodic_tasks(threads, periodic, producers[2:])
        threads.start("outbox", relay.run_once, partial(new_rows.wait, _RELAY_IDLE_S))
        threads.start("intake", intake.run_once, intake.wait_for_work)
        closing.callback(_release, intake.validator, leased_jobs, [leases, append_leases])
        report_ready()
        stop.wait()
        threads.join(_STOP_S_MAX)


def _release(validator: Validator, leased_jobs: LeasedJobs, leases: list[ActiveLeases]) -> None:
    """Give up all jobs, so that another process can take them at once."""
    validator.close()
    leased_jobs.close()
    with contextlib.suppress(*DATABASE_UNAVAILABLE):
        for held in leases:
            held.release_all()


def _read_settings(
    env: Mapping[str, str],
) -> tuple[IntakeSettings, KafkaSettings, DatabaseSettings, ObjectStore, BodyLimits]:
    return read_all(
        env,
        IntakeSettings.from_env,
        KafkaSettings.from_env,
        DatabaseSettings.from_env,
        object_store_from_env,
        BodyLimits.from_env,
    )


def _producers(
    kafka: KafkaSettings, holder: str, closing: contextlib.ExitStack
) -> list[RecordProducer]:
    """Return the producers of the expander, of the relay and of the periodic tasks."""
    producers = [
        RecordProducer(kafka, client_id=f"{holder}-{n}", waits_for_partitions=True)
        for n in range(2 + PRODUCERS)
    ]
    closing.callback(close_producers, producers)
    return producers


def _start_log_tasks(
    threads: SupervisedThreads, publisher: WatermarkPublisher, past_controls: PastControls
) -> None:
    """Start the periodic tasks that maintain the topic `control`."""
    threads.start_periodic(CHECK_INTERVAL_S, "watermark", publisher.run_once)
    threads.start_periodic(_DUE_CHECK_S, "past-controls", past_controls.run_once)


def _past_controls(
    kafka: KafkaSettings, sender: PartitionSender, clock: Clock, stop: threading.Event
) -> PastControls:
    first_run_s = random.uniform(0, INTERVAL_S)
    return PastControls(kafka, sender, clock, first_run_s=first_run_s, is_stopping=stop.is_set)


def _read_capacity(tail: TopicTailReader, capacities: PoolCapacities) -> None:
    capacities.update(tail.poll(_CAPACITY_POLL_S))


def _capacity_tail(kafka: KafkaSettings, holder: str) -> TopicTailReader:
    """Return a reader of capacity from now on. Raises KafkaUnavailableError."""
    tail = TopicTailReader(
        kafka,
        CAPACITY,
        client_id=f"{holder}-capacity",
        reset_to_earliest=False,
        poll_interval_s=POLL_INTERVAL_S,
    )
    tail.seek_to_end(_START_S_MAX)
    return tail


if __name__ == "__main__":
    sys.exit(main())
