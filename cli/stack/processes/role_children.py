"""Defines the roles of an embedded stack as child processes configured by their environment."""

import base64
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cli.stack.data_folder import TRUSTED_KEYS_FILE, write_private
from cli.stack.processes.child import BACKOFF_S_MAX, Child
from cli.stack.processes.inherited_env import OF_ROLE, SYSTEM, role_env
from cli.stack.processes.ports import HOST
from cli.stack.served_models import ServedModel
from core.errors import SettingsError
from core.secret_keys import KEY_BYTES
from gpu_consumers.settings import ReplicaSettings
from results.webhooks.settings import WebhookSettings
from topics.records.catalogue import JOB_CLASSES

KAFKA: Final = "MILLRACE_KAFKA_BOOTSTRAP_SERVERS"
DATABASE: Final = "MILLRACE_DATABASE_URL"
_OBJECTS_KIND: Final = "MILLRACE_OBJECTS_KIND"
_OBJECTS_ROOT: Final = "MILLRACE_OBJECTS_ROOT"
_WEBHOOK_KEY: Final = f"{WebhookSettings.env_prefix}SECRET_KEY"
_PRIVATE_WEBHOOKS: Final = f"{WebhookSettings.env_prefix}ALLOW_PRIVATE"

MODULES: Mapping[str, tuple[str, ...]] = {
    "api": ("api",),
    "intake": ("jobs",),
    "batcher": ("batcher",),
    "gpu-consumer": ("gpu_consumers",),
    "results-writer": ("results", "writer"),
    "finaliser": ("results", "finaliser"),
    "webhooks": ("results.webhooks",),
    "autoscaler": ("autoscaler",),
}
"""The module of each role, followed by its arguments."""

_BATCHER_CLASS: Final = "MILLRACE_BATCHER_JOB_CLASS"
_BATCHER_PORT: Final = "MILLRACE_BATCHER_METRICS_PORT"

CONTROL_PLANE: Mapping[str, tuple[str, Mapping[str, str], str]] = {
    "api": ("api", {}, ""),  # serves its own /metrics
    "intake": ("intake", {}, "MILLRACE_INTAKE_METRICS_PORT"),
    "batcher": ("batcher", {_BATCHER_CLASS: "bulk"}, _BATCHER_PORT),
    "batcher-interactive": ("batcher", {_BATCHER_CLASS: "interactive"}, _BATCHER_PORT),
    "results-writer": ("results-writer", {}, "MILLRACE_WRITER_METRICS_PORT"),
    "finaliser": ("finaliser", {}, "MILLRACE_FINALISER_METRICS_PORT"),
    "webhooks": ("webhooks", {}, "MILLRACE_WEBHOOKS_METRICS_PORT"),
}
"""Every child except the replicas: its role, its variables, the variable of its metrics port."""

AUTOSCALER: Mapping[str, tuple[str, Mapping[str, str], str]] = {
    "autoscaler": ("autoscaler", {}, "MILLRACE_AUTOSCALER_METRICS_PORT"),
}
"""The further child of `up --autoscale`, in the form of `CONTROL_PLANE`."""

WEBHOOK_ROLES: Final = frozenset({"api", "webhooks"})
"""The roles that read the variables of `webhook_env`."""

ROLE_ENV: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}
"""Applies `-P` also to the Python processes that a role's libraries start."""

MEMBERS_FOLDER = "MILLRACE_KAFKA_MEMBERS_FOLDER"
"""The variable that has another value for each child."""

WEIGHT_CACHE: Final = "MILLRACE_ENGINE_WEIGHT_CACHE"
"""The variable of the replicas' cache; one of the operator takes precedence."""

_AUTOSCALED: Final = (
    "MILLRACE_AUTOSCALER_ACTUATOR",
    "MILLRACE_AUTOSCALER_POLICY_FILE",
    "MILLRACE_AUTOSCALER_SOCKET",
)

_BULK_ROLES = frozenset({"intake", "batcher", "results-writer", "finaliser", "webhooks"})
"""Children that no online call waits for; they run at a lower priority."""
_BULK_NICENESS = 10

SCALING_INPUT_ROLES: Final = frozenset({"intake"})
"""Bulk roles whose records the autoscaler needs each second; with it they run at normal priority.

A backlog that is older than 3 s lowers nothing, and only its records wake a pool for a job.
"""

_ROLE_STAGE = 2
_ROLE_STOP_S = 10.0
_REPLICA_DRAIN_S = 45.0
"""More than a replica's `shutdown_grace_s`: it then requeues the rest and leaves its group."""

_REPLICA_BACKOFF_S_MAX = 0.5
"""Short, because quarantine finds a poison item by up to three crashes of its replica."""


def role_command(role: str) -> tuple[str, ...]:
    """Return the command line of a role.

    `-P` keeps the working directory off the import path: it may hold packages with the common
    names of ours, such as `api` or `jobs`.
    """
    module, *arguments = MODULES[role]
    return (sys.executable, "-P", "-m", module, *arguments)


def role_child(name: str, role: str, env: Mapping[str, str]) -> Child:
    """Return a role as a child that is restarted when it exits.

    It runs in the current directory, so that relative paths in variables stay valid. Of `env` and
    of the parent's environment it gets the variables of its role alone.
    """
    return Child(
        name=name,
        role=role,
        argv=role_command(role),
        env={"PYTHONUNBUFFERED": "1", **ROLE_ENV, **role_env(role, env)},
        inherits=(*SYSTEM, *OF_ROLE[role]),
        cwd=".",
        stage=_ROLE_STAGE,
        stop_timeout_s=_ROLE_STOP_S,
        drain_timeout_s=_REPLICA_DRAIN_S if role == "gpu-consumer" else _ROLE_STOP_S,
        niceness=_BULK_NICENESS if name in _BULK_ROLES else 0,
        backoff_s_max=_REPLICA_BACKOFF_S_MAX if role == "gpu-consumer" else BACKOFF_S_MAX,
    )


def shared_env(kafka: str, database_url: str, data: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every role gets in addition to `env`.

    Objects are stored in `data` unless `env` names an object store.
    """
    return {KAFKA: kafka, DATABASE: database_url, **object_store_env(data, env)}


def object_store_env(data: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of the object store in `data`, unless `env` names an object store."""
    return {} if _names_object_store(env) else {_OBJECTS_ROOT: str(data.absolute() / "objects")}


def _names_object_store(env: Mapping[str, str]) -> bool:
    """Whether `env` names an object store; the kind `local` does so only with a folder."""
    return env.get(_OBJECTS_KIND, "local") != "local" or _OBJECTS_ROOT in env


def external_service_variables(env: Mapping[str, str]) -> str:
    """Return the names of the variables in `env` that name an external service, or ""."""
    named = [name for name in (KAFKA, DATABASE, _OBJECTS_ROOT) if name in env]
    if env.get(_OBJECTS_KIND, "local") != "local":
        named.append(_OBJECTS_KIND)
    return ", ".join(named)


def refuse_reserved_variables(env: Mapping[str, str]) -> None:
    """Reject variables that `millrace up` sets itself, and a partly named installation.

    Raises SettingsError, which names the variables.
    """
    _require_all_or_none(env)
    ports = {port for _, _, port in {**CONTROL_PLANE, **AUTOSCALER}.values() if port}
    reserved = {
        **dict.fromkeys([*ports, "MILLRACE_GPU_METRICS_PORT"], "DATA/stack.json lists the ports"),
        **dict.fromkeys(_AUTOSCALED, "give --autoscale"),
        "MILLRACE_API_HOST": f"the API listens on {HOST} only",
        "MILLRACE_API_PORT": "give --port",
        _BATCHER_CLASS: "a batcher of each class is started",
        "MILLRACE_ENGINE_KIND": "give --engine",
        "MILLRACE_ENGINE_MODEL_NAME": "give --model",
        "MILLRACE_ENGINE_MODEL_PATH": "give --model",
        "MILLRACE_ENGINE_MODEL_VERSION": "give --model",
        "MILLRACE_ENGINE_TRUSTED_KEYS": "the replicas trust the keys in DATA",
        "MILLRACE_ENGINE_UNVERIFIED_UNTIL": "every model is signed",
        "MILLRACE_GPU_POOL": "each --model has its own pool",
        "MILLRACE_GPU_REPLICA_ID": "each process has its own",
        "MILLRACE_GPU_STANDBY": "the autoscaler decides",
        MEMBERS_FOLDER: "each role has its own folder",
    }
    if refused := [f"{name}: {why}" for name, why in sorted(reserved.items()) if name in env]:
        raise SettingsError(f"`millrace up` sets these itself: {'; '.join(refused)}")


def _require_all_or_none(env: Mapping[str, str]) -> None:
    """Raise SettingsError when `env` names some of the external services and not all of them.

    The three belong together. With only some of them, a stack would fail the jobs of a database
    whose files it does not have, relay the outbox to its own temporary broker, or commit offsets of
    a log whose jobs it does not know.
    """
    named = {
        KAFKA: KAFKA in env,
        DATABASE: DATABASE in env,
        f"{_OBJECTS_ROOT} or {_OBJECTS_KIND}=s3": _names_object_store(env),
    }
    if len(set(named.values())) == 1:
        return
    missing = ", ".join(name for name, is_named in named.items() if not is_named)
    raise SettingsError(
        f"{external_service_variables(env)}: log, database and objects of an installation go "
        f"together: set {missing}, too, or unset these"
    )


def replica_env(model: ServedModel, engine: Mapping[str, str], data: Path) -> dict[str, str]:
    """Return the variables of a replica of `model`.

    It loads a signed version from the object store by way of a cache in `data`.
    """
    env = {
        "MILLRACE_GPU_POOL": model.pool,
        "MILLRACE_ENGINE_KIND": model.engine,
        "MILLRACE_ENGINE_MODEL_NAME": model.name,
    }
    if model.signed is not None:
        env |= {
            "MILLRACE_ENGINE_MODEL_VERSION": model.version,
            "MILLRACE_ENGINE_TRUSTED_KEYS": str(data.absolute() / TRUSTED_KEYS_FILE),
            WEIGHT_CACHE: str(data.absolute() / "weights"),
        }
    return {**env, **engine}


def served_classes(env: Mapping[str, str], pool: str) -> Sequence[str]:
    """Return the job classes that a replica serves under `env`. Raises SettingsError."""
    job_class = ReplicaSettings.from_env({**env, "MILLRACE_GPU_POOL": pool}).job_class
    return (job_class,) if job_class in JOB_CLASSES else JOB_CLASSES


def webhook_env(data: Path, env: Mapping[str, str], *, allow_private: bool) -> dict[str, str]:
    """Return the webhook variables of a stack. A key in `env` takes precedence."""
    variables = {} if _WEBHOOK_KEY in env else {_WEBHOOK_KEY: _saved_key(data / "webhook-key")}
    return {**variables, _PRIVATE_WEBHOOKS: "true"} if allow_private else variables


def _saved_key(path: Path) -> str:
    """Return the key in `path`, created if absent. Without it no stored secret can be decrypted."""
    if not path.exists():
        write_private(path, base64.b64encode(secrets.token_bytes(KEY_BYTES)))
    return path.read_text().strip()
