"""The embedded stack: a broker, a database and every role, started in order and stopped together.

1. Push the models that are not in the object store yet. 2. Start the replicas: loading a model
takes longest. 3. Start the broker and the database. 4. Create topics, schema, models and key.
5. Start the other roles. 6. Wait until the API and every role are ready and every pool has granted
credit to the batchers of its job classes, so that an online call and an item of a job can run.

With scaling policies, a pool begins with its minimum of replicas, and the role `autoscaler` changes
their number through a socket. A pool that begins with none is not waited for.
"""

import contextlib
import logging
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from cli.stack.data_folder import StackState, cache_dir, lock_data_folder, remove_state, write_state
from cli.stack.errors import StackError
from cli.stack.model_requests import ModelRequest
from cli.stack.processes.child import Child, ReadinessLines
from cli.stack.processes.ports import HOST, is_api_ready, is_free, reserve_ports
from cli.stack.processes.role_children import (
    AUTOSCALER,
    CONTROL_PLANE,
    DATABASE,
    KAFKA,
    MEMBERS_FOLDER,
    SCALING_INPUT_ROLES,
    WEBHOOK_ROLES,
    WEIGHT_CACHE,
    refuse_reserved_variables,
    replica_env,
    role_child,
    served_classes,
    shared_env,
    webhook_env,
)
from cli.stack.processes.supervisor import Supervisor
from cli.stack.pushed_models import ModelPushes
from cli.stack.replica_pools import REPLICAS_MAX, PoolReplica, ReplicaPools
from cli.stack.scaled_pools import (
    StackPool,
    autoscaler_env,
    read_stack_policies,
    scaled_pools,
    socket_path,
    unserved_tables,
)
from cli.stack.scaling_socket import ScalingSocket
from cli.stack.served_models import ServedModel, require_distinct
from cli.stack.services.embedded_kafka import READY_S_MAX as KAFKA_READY_S_MAX
from cli.stack.services.embedded_kafka import EmbeddedKafka
from cli.stack.services.embedded_postgres import READY_S_MAX as POSTGRES_READY_S_MAX
from cli.stack.services.embedded_postgres import EmbeddedPostgres
from cli.stack.stack_setup import prepare_installation, watch_replica_credit
from cli.transfer_display import shown_transfers
from core.runtime.shutdown import interrupted_by_signals
from topics.settings import KafkaSettings

_LOG = logging.getLogger(__name__)

READY_S_MAX = 300.0
"""On a slow machine a model loads for minutes."""

_API_METRICS = "MILLRACE_API_METRICS_PORT"
"""The variable of the one metrics port that an operator may choose."""

_PROTOCOL = "MILLRACE_KAFKA_GROUP_PROTOCOL"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The options of `millrace up`."""

    data: Path
    port: int
    models: tuple[ServedModel, ...] = ()
    pushes: tuple[ModelRequest, ...] = ()  # models to push first
    engine_env: Mapping[str, str] = field(default_factory=dict)
    allow_private_webhooks: bool = False
    autoscale: Path | None = None  # scaling policies; None: one replica for each model


class EmbeddedStack:
    """One stack on one data folder; when its block ends, all processes have ended."""

    def __init__(
        self, options: StackOptions, env: Mapping[str, str], should_stop: Callable[[], bool]
    ) -> None:
        """Start nothing yet. Services that `env` names replace the embedded ones.

        Raises SettingsError.
        """
        refuse_reserved_variables(env)
        self._options, self._env, self._should_stop = options, env, should_stop
        self._temporary = options.data.absolute() / "tmp"  # emptied at each start
        self._session_timeout_s = KafkaSettings.from_env(
            {KAFKA: "embedded", **env}
        ).session_timeout_s
        self._models = options.models
        self._control_plane = {**CONTROL_PLANE, **(AUTOSCALER if options.autoscale else {})}
        self._children_beside_api = tuple(name for name in self._control_plane if name != "api")
        self._closing = contextlib.ExitStack()
        self._supervisor = Supervisor(options.data / "logs")
        self.url = ""
        self.key = ""
        self.scaled_pools: tuple[StackPool, ...] = ()  # from `start` on, with scaling policies
        self.unserved_tables: tuple[str, ...] = ()  # of policies for pools of other stacks

    def __enter__(self) -> Self:
        """Lock the data folder. Raises DataFolderInUseError, SettingsError."""
        self._closing.enter_context(lock_data_folder(self._options.data))
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        remove_state(self._options.data)
        self._supervisor.stop()
        self._closing.close()

    def start(self) -> None:
        """Start everything; return when the stack is ready, or when `should_stop`.

        Call it in the main thread. Raises StackError.
        """
        try:
            self._start()
        except KeyboardInterrupt:
            if not self._should_stop():
                raise

    def _start(self) -> None:
        began_s = time.monotonic()
        data = self._options.data
        with self._interruptible():
            self._push_models()
        if self._options.autoscale is not None:
            policies = read_stack_policies(self._options.autoscale)
            pools = [model.pool for model in self._models]
            self.scaled_pools = scaled_pools(policies, pools, time.time())
            self.unserved_tables = unserved_tables(policies, pools)
        ports = self._ports()
        with self._interruptible():
            services = self._prepare_services()
        servers = services[0].bootstrap_servers if services else self._env[KAFKA]
        database_url = services[1].url if services else self._env[DATABASE]
        credentials = services[0].credentials if services else {}
        env = {**shared_env(servers, database_url, data, self._env), **credentials}
        if services and _PROTOCOL not in self._env:
            env[_PROTOCOL] = "consumer"  # its session timeout is as short as the classic one
        self._start_replicas(env, ports)
        if services:
            self._start_services(*services)
        kafka = KafkaSettings.from_env({**self._env, **env})  # external brokers: replication, TLS
        with self._interruptible():
            self.key = prepare_installation(data, kafka, database_url, self._models)
        self.url = f"http://{HOST}:{ports['api']}"
        readiness = ReadinessLines(data / "logs", self._children_beside_api)
        self._start_control_plane(env, ports)
        write_state(
            data,
            StackState(
                url=self.url,
                kafka_bootstrap_servers=servers,
                database_url=database_url,
                pools=[model.pool for model in self._models],
                metrics_ports=self._metrics_ports(ports),
                kafka_credentials=credentials,
                scaling_socket=str(socket_path(data)) if self._options.autoscale else "",
                replica_ports={n: ports[_slot(n)] for n in self._slots()},
            ),
        )
        waits: dict[str, Callable[[], bool]] = {
            name: partial(readiness.is_ready, name) for name in self._children_beside_api
        }
        waits["the API"] = partial(is_api_ready, ports["api"])
        with contextlib.ExitStack() as watching:
            with self._interruptible():
                has_credit = watch_replica_credit(kafka, self._pool_classes())
                waits["a model"] = watching.enter_context(has_credit)
            for what, is_ready in waits.items():
                self._wait_until(is_ready, what, READY_S_MAX)
        _LOG.info("ready", extra={"seconds": round(time.monotonic() - began_s, 1)})

    def run(self) -> None:
        """Keep everything running until `should_stop`."""
        self._supervisor.run(self._should_stop)

    def _wait_until(self, ready: Callable[[], bool], what: str, s_max: float) -> None:
        self._supervisor.wait_until(
            lambda: self._should_stop() or ready(), timeout_s=s_max, what=what
        )

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Raise KeyboardInterrupt at a stop signal, also at one that arrived before the block."""
        with interrupted_by_signals():
            if self._should_stop():
                raise KeyboardInterrupt
            yield

    def _push_models(self) -> None:
        """Push the models that are not there yet. Raises SettingsError for two with one pool."""
        if not self._options.pushes:
            return
        with shown_transfers() as report:
            pushes = ModelPushes(data=self._options.data, env=self._env, report=report)
            pushed = [pushes.push(request) for request in self._options.pushes]
        self._models = (*self._options.models, *pushed)
        require_distinct(self._models)

    def _pool_classes(self) -> list[tuple[str, str]]:
        """Return each pool that begins with a replica, with each job class that it serves."""
        empty = {scaled.pool for scaled in self.scaled_pools if not scaled.kinds}
        return [
            (model.pool, job_class)
            for model in self._models
            if model.pool not in empty
            for job_class in served_classes(self._env, model.pool)
        ]

    def _ports(self) -> dict[str, int]:
        port = self._options.port
        names = (
            *self._children_beside_api,
            *(map(_slot, self._slots()) if self._slots() else map(_replica_name, self._models)),
            _API_METRICS,
            *(() if port else ("api",)),
        )
        ports = dict(reserve_ports(self._options.data / "ports.json", names, random.Random()))
        if port:
            if not is_free(port):
                raise StackError(f"Port {port} is taken; choose another one or --port 0.")
            ports["api"] = port
        return ports

    def _metrics_ports(self, ports: Mapping[str, int]) -> dict[str, int]:
        chosen = self._env.get(_API_METRICS, "")
        api = int(chosen) if chosen.isdigit() else ports[_API_METRICS]
        slots = set(map(_slot, self._slots()))
        others = {n: p for n, p in ports.items() if n not in {"api", _API_METRICS} | slots}
        return {**others, "api": api}

    def _prepare_services(self) -> tuple[EmbeddedKafka, EmbeddedPostgres] | None:
        """Return a prepared broker and server, None when `env` names external ones."""
        if KAFKA in self._env:  # then DATABASE as well: see `refuse_reserved_variables`
            return None
        data, cache = self._options.data, cache_dir(self._env)
        broker = EmbeddedKafka(data, cache, session_timeout_s=self._session_timeout_s)
        broker.prepare()
        server = EmbeddedPostgres(data)
        self._closing.callback(server.remove_socket_folder)
        server.prepare()
        return broker, server

    def _start_services(self, broker: EmbeddedKafka, server: EmbeddedPostgres) -> None:
        self._supervisor.start([broker.child(), server.child()])
        self._wait_until(server.is_ready, "Postgres", POSTGRES_READY_S_MAX)
        self._wait_until(broker.is_ready, "Kafka", KAFKA_READY_S_MAX)

    def _start_control_plane(self, env: Mapping[str, str], ports: Mapping[str, int]) -> None:
        # Not for replicas: vLLM creates sockets in TMPDIR, and socket paths must be short.
        env = {**env, "TMPDIR": str(self._temporary)}
        webhooks = webhook_env(
            self._options.data, self._env, allow_private=self._options.allow_private_webhooks
        )
        if self._options.autoscale is not None:
            env |= autoscaler_env(self._options.data, self._options.autoscale)
        for name, (role, own, metrics_port) in self._control_plane.items():
            if role == "api":
                port = {
                    "MILLRACE_API_HOST": HOST,
                    "MILLRACE_API_PORT": str(ports[name]),
                    _API_METRICS: str(self._metrics_ports(ports)["api"]),
                }
            else:
                port = {metrics_port: str(ports[name])}
            further = webhooks if role in WEBHOOK_ROLES else {}
            self._start_role(name, role, {**env, **own, **further, **port})

    def _start_replicas(self, env: Mapping[str, str], ports: Mapping[str, int]) -> None:
        """Start one replica for each model, or as many as the scaling policies say."""
        if self._options.autoscale is None:
            for model in self._models:
                name = _replica_name(model)
                self._supervisor.start([self._replica(name, model, env, ports[name])])
            return
        models = {model.pool: model for model in self._models}

        def child(replica: PoolReplica) -> Child:
            port = ports[_slot(replica.number)]
            made = self._replica(replica.name, models[replica.pool], env, port)
            return replace(made, env_of_start=replica.env)

        pools = ReplicaPools(self._supervisor, child, models)
        for scaled in self.scaled_pools:
            pools.apply(scaled.order)
        requests = self._closing.enter_context(
            ScalingSocket(socket_path(self._options.data), apply=pools.apply, observe=pools.observe)
        )
        self._supervisor.repeat_task(requests.answer_waiting)
        self._supervisor.repeat_task(pools.reconcile)

    def _replica(self, name: str, model: ServedModel, env: Mapping[str, str], port: int) -> Child:
        caches = {name: self._env[name] for name in (WEIGHT_CACHE,) if name in self._env}
        own = replica_env(model, {**caches, **self._options.engine_env}, self._options.data)
        metrics_port = {"MILLRACE_GPU_METRICS_PORT": str(port)}
        return self._role_child(name, "gpu-consumer", {**env, **own, **metrics_port})

    def _start_role(self, name: str, role: str, env: Mapping[str, str]) -> None:
        self._supervisor.start([self._role_child(name, role, env)])

    def _role_child(self, name: str, role: str, env: Mapping[str, str]) -> Child:
        members = self._temporary / "members" / name
        child = role_child(name, role, {**env, MEMBERS_FOLDER: str(members)})
        if self._options.autoscale is not None and role in SCALING_INPUT_ROLES:
            return replace(child, niceness=0)
        return child

    def _slots(self) -> range:
        """Return the numbers of the slots for replicas; none without scaling policies."""
        return range(1, REPLICAS_MAX + 1) if self._options.autoscale is not None else range(0)


def _replica_name(model: ServedModel) -> str:
    """Return the name of the child of a model that has one replica."""
    return f"gpu-{model.pool}"


def _slot(number: int) -> str:
    """Return the name of a slot's port."""
    return f"replica-{number}"
