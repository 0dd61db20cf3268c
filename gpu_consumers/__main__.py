"""The role `gpu-consumer`: reads settings, builds a replica and runs it."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import asyncio
    import contextlib
    import os
    import threading
    from collections.abc import AsyncIterator, Mapping
    from functools import partial

    import uvloop

    from core.bodies.body_limit_settings import BodyLimits
    from core.clock import SystemClock
    from core.errors import MillraceError
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.open_files import request_open_file_limit
    from core.runtime.role_lifecycle import report_ready, run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from gpu_consumers import metrics
    from gpu_consumers.engine_watchdog import exit_when_stuck
    from gpu_consumers.engines.engine import Engine
    from gpu_consumers.engines.settings import EngineSettings
    from gpu_consumers.engines.simulated.settings_hash import simulated_engine_hash
    from gpu_consumers.flow_control.loading_state import LoadingState
    from gpu_consumers.flow_control.replica_state import Lifecycle, PublishedState
    from gpu_consumers.flow_control.warm_model import WarmModel
    from gpu_consumers.model_start import prepared_engine, start_engine, warm_up_engine
    from gpu_consumers.payloads.engine_bodies import body_preparation
    from gpu_consumers.quarantine.host_identity import host_id
    from gpu_consumers.quarantine.process_log import ProcessLog
    from gpu_consumers.replica import Replica
    from gpu_consumers.replica_clients import ReplicaClients, classes_of, connect_clients
    from gpu_consumers.settings import HostSettings, ReplicaSettings
    from gpu_consumers.spot.notice_source import (
        ReadNotice,
        read_file_notice,
        read_url_notice,
        watch_notice,
    )
    from gpu_consumers.standby.standby import stand_by
    from gpu_consumers.weights.errors import ModelRefusedError, StagingStoppedError
    from gpu_consumers.wiring import build_replica, new_replica_id, new_replica_state
    from storage.objects.object_store import ObjectStore
    from storage.objects.open_store import object_store_from_env
    from topics.clients.admin import TopicAdmin
    from topics.clients.producer import RecordProducer
    from topics.clients.start_check import check_topics, topics_of_role
    from topics.records.catalogue import ATTEMPTS, pool_topics
    from topics.settings import KafkaSettings
    from topics.tail_readers.commit_watermarks import raise_if_log_says_lost

_START_S_MAX = 60.0
_OTHER_FILES = 256  # of Kafka, the object store and the engine


def main() -> None:
    """Run until a signal, then exit with the exit code of the role."""
    configure_logs("gpu-consumer")
    stop = stop_on_signals()
    # Without clean-up: threads and engine processes have nothing to save.
    os._exit(run_role(lambda: run_on_loop(os.environ, stop), refused=(ModelRefusedError,)))


def run_on_loop(env: Mapping[str, str], stop: threading.Event) -> None:
    """Run the replica that `env` configures, on the event loop that suits its engine."""
    settings, kafka, engine, objects, body_limits, machine = read_all(
        env,
        ReplicaSettings.from_env,
        KafkaSettings.from_env,
        EngineSettings.from_env,
        object_store_from_env,
        BodyLimits.from_env,
        HostSettings.from_env,
    )
    if settings.job_class == "bulk":  # no online calls, so no headroom
        engine = engine.model_copy(update={"interactive_headroom": 0})
    request_open_file_limit(engine.items_at_once + _OTHER_FILES)  # one connection per item
    # vLLM is tested with the loop of asyncio; other engines spend most of their CPU in the loop.
    loop_factory = None if engine.kind == "vllm" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        processes = ProcessLog(
            kafka=kafka, pool=settings.pool, host_id=host_id(machine), clock=SystemClock()
        )
        runner.run(run(settings, kafka, engine, objects, body_limits, processes, stop=stop))


async def run(  # noqa: PLR0913  one argument for each part of the process
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    engine_settings: EngineSettings,
    objects: ObjectStore,
    body_limits: BodyLimits,
    processes: ProcessLog,
    *,
    stop: threading.Event,
) -> None:
    """Start the engine, build a replica and run it until `stop`; a failing host rests before."""
    serve_metrics(settings)
    metrics.ENGINE.info({"engine": engine_settings.kind, "model": engine_settings.model_name})
    admin, own_topics = TopicAdmin(kafka), pool_topics(settings.pool)
    admin.wait_for_broker(_START_S_MAX)
    admin.create([ATTEMPTS, *own_topics])
    topics = [*topics_of_role("gpu-consumer"), *own_topics]
    check_topics(admin, topics, broker_wait_s=_START_S_MAX)
    raise_if_log_says_lost(kafka, client_id="gpu-consumer", timeout_s=_START_S_MAX)
    untrusted: list[MillraceError] = []

    def leave(failure: MillraceError) -> None:
        """Requeue what runs, without an attempt, and end: the engine's answers are no results."""
        untrusted.append(failure)
        stop.set()

    replica_id, state = new_replica_id(settings), new_replica_state(settings)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_notices_watched(settings, state, stop))
        async with _loading(settings, kafka, engine_settings, replica_id, state) as loading:
            prepared = prepared_engine(
                engine_settings, kafka, objects, loading=loading, stop=stop, on_untrusted=leave
            )
            try:
                engine = await stack.enter_async_context(prepared)
            except StagingStoppedError:
                return
            start = start_engine(engine, engine_settings, loading, stop)
            connecting = _connect(settings, kafka, replica_id)
            _, _, clients = await asyncio.gather(start, processes.read_predecessors(), connecting)
            await warm_up_engine(engine, engine_settings, loading, stop)
            await processes.rest(stop)
            replica, closing = build_replica(
                settings,
                kafka,
                engine,
                objects,
                prepare_body=body_preparation(engine_settings),
                body_limits=body_limits,
                silence_s_max=engine_settings.item_timeout_s + settings.engine_reaction_s,
                host=processes.host,
                served=warm_model(engine_settings, engine),
                replica_id=replica_id,
                state=state,
                clients=clients,
            )
            stack.enter_context(closing)
            replica.read_demand()
            # In standby all but its groups is ready: a call waits for what is left.
            if settings.standby and not await _joins(
                settings, kafka, engine, replica, replica_id, stop=stop
            ):
                return
        report_ready()
        serving = processes.serving(engine.concurrency)
        async with serving, exit_when_stuck(settings.stuck_s_max):
            await replica.run(stop)
        if untrusted:
            raise untrusted[0]


async def _connect(
    settings: ReplicaSettings, kafka: KafkaSettings, replica_id: str
) -> ReplicaClients:
    """Connect the clients in a thread: a load may block the loop, and calls may wait after it."""
    return await asyncio.to_thread(
        connect_clients, settings, kafka, replica_id=replica_id, clock=SystemClock()
    )


def warm_model(settings: EngineSettings, engine: Engine) -> WarmModel:
    """Return what a replica publishes of its engine, which has started."""
    is_simulated = settings.kind == "simulated"
    return WarmModel(
        version=settings.model_version or "",
        engine=engine.engine_hash or (simulated_engine_hash(settings) if is_simulated else ""),
        adapters_max=settings.adapters_max,
        adapters=lambda: sorted(engine.adapters),
    )


async def _joins(
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    engine: Engine,
    replica: Replica,
    replica_id: str,
    *,
    stop: threading.Event,
) -> bool:
    """Stay in standby; return whether to join the groups, rather than to end."""
    replica.state.set_lifecycle(Lifecycle.ASLEEP)
    report_ready()
    reason = await stand_by(
        engine,
        kafka,
        pool=settings.pool,
        replica_id=replica_id,
        clock=SystemClock(),
        stop=stop,
        raise_failure=replica.raise_failure,
    )
    if reason is None:
        replica.state.set_lifecycle(Lifecycle.DRAINING)
        replica.stop_reading()
        return False
    replica.state.set_lifecycle(Lifecycle.STARTING)
    return True


@contextlib.asynccontextmanager
async def _notices_watched(
    settings: ReplicaSettings, state: PublishedState, stop: threading.Event
) -> AsyncIterator[None]:
    """Drain during the block, as on a signal, when the GPU is about to be taken away."""
    sources: list[ReadNotice] = []
    if settings.notice_file is not None:
        sources.append(partial(read_file_notice, settings.notice_file))
    if settings.notice_url is not None:
        sources.append(partial(read_url_notice, settings.notice_url))
    if not sources:
        yield
        return

    def leave(leaves_at_s: float) -> None:
        metrics.SPOT_NOTICES.inc()
        state.set_notice(leaves_at_s)
        stop.set()

    watching = asyncio.create_task(watch_notice(sources, leave, clock=SystemClock(), stop=stop))
    try:
        yield
    finally:
        watching.cancel()


@contextlib.asynccontextmanager
async def _loading(
    settings: ReplicaSettings,
    kafka: KafkaSettings,
    engine: EngineSettings,
    replica_id: str,
    state: PublishedState,
) -> AsyncIterator[LoadingState]:
    """Publish during the block that the replica starts, or sleeps.

    It lasts until the replica runs, whose first record replaces those of the block.
    """
    producer = RecordProducer(kafka, client_id=f"{replica_id}-loading", linger_ms=0)
    version = engine.model_version or ""
    loading = LoadingState(
        producer, replica_id, settings.pool, classes_of(settings), version, state
    )
    try:
        async with loading.published():
            yield loading
    finally:
        # Not awaited: it takes a while to close, and calls wait for the replica.
        threading.Thread(target=producer.close, name="loading-close", daemon=True).start()


if __name__ == "__main__":
    main()
