"""The roles of an embedded stack as child processes, each configured by its environment alone."""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.stack.processes.child import BACKOFF_S_MAX, Child
from cli.stack.processes.ports import HOST
from cli.stack.served_models import ServedModel
from cli.stack.services.external_services import (
    DATABASE,
    KAFKA,
    names_object_store,
    require_all_or_none,
)
from core.errors import SettingsError
from gpu_consumers.settings import ReplicaSettings
from topics.records.catalogue import JOB_CLASSES

MODULES: Mapping[str, tuple[str, ...]] = {
    "api": ("api",),
    "intake": ("jobs",),
    "batcher": ("batcher",),
    "gpu-consumer": ("gpu_consumers",),
    "results-writer": ("results", "writer"),
    "finaliser": ("results", "finaliser"),
    "webhooks": ("results.webhooks",),
}
"""Role to the module (and argument) that is its composition root."""

CONTROL_PLANE: Mapping[str, tuple[str, Mapping[str, str], str]] = {
    "api": ("api", {}, ""),  # serves its own /metrics
    "intake": ("intake", {}, "MILLRACE_INTAKE_METRICS_PORT"),
    "batcher": (
        "batcher",
        {"MILLRACE_BATCHER_JOB_CLASS": "bulk"},
        "MILLRACE_BATCHER_METRICS_PORT",
    ),
    "batcher-interactive": (
        "batcher",
        {"MILLRACE_BATCHER_JOB_CLASS": "interactive"},
        "MILLRACE_BATCHER_METRICS_PORT",
    ),
    "results-writer": ("results-writer", {}, "MILLRACE_WRITER_METRICS_PORT"),
    "finaliser": ("finaliser", {}, "MILLRACE_FINALISER_METRICS_PORT"),
    "webhooks": ("webhooks", {}, "MILLRACE_WEBHOOKS_METRICS_PORT"),
}
"""Every child but the replicas: its role, its variables, and which of them is its metrics port."""

ROLE_ENV: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}
"""What `-P` is to a role, for the processes that its libraries start."""

MEMBERS_FOLDER = "MILLRACE_KAFKA_MEMBERS_FOLDER"
"""The variable that differs from child to child, whatever its role."""

_BULK_ROLES = frozenset({"intake", "batcher", "results-writer", "finaliser", "webhooks"})
"""Children in which no caller waits for milliseconds."""
_BULK_NICENESS = 10
_ROLE_STAGE = 2
_REPLICA_STOP_S = 10.0
_REPLICA_BACKOFF_S_MAX = 0.5
"""An item may end its replica, and is found by at most three starts: they should not take long."""


def role_command(role: str) -> tuple[str, ...]:
    """Return the command line of a role, which imports nothing from the folder that it starts in.

    Our packages have common names: such a folder may well hold an `api` or `jobs` of its own.
    """
    module, *arguments = MODULES[role]
    return (sys.executable, "-P", "-m", module, *arguments)


def role_child(name: str, role: str, env: Mapping[str, str]) -> Child:
    """Return a role as a child that dies with the stack and is started again when it fails.

    It starts in our folder, so that a relative path in a variable means the same to both.
    """
    return Child(
        name=name,
        argv=role_command(role),
        env={"PYTHONUNBUFFERED": "1", **ROLE_ENV, **env},
        cwd=".",
        stage=_ROLE_STAGE,
        stop_signal=signal.SIGTERM,
        parent_death_signal=signal.SIGKILL,
        stop_timeout_s=_REPLICA_STOP_S,
        niceness=_BULK_NICENESS if name in _BULK_ROLES else 0,
        backoff_s_max=_REPLICA_BACKOFF_S_MAX if role == "gpu-consumer" else BACKOFF_S_MAX,
    )


def shared_env(kafka: str, database_url: str, data: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every role of the stack reads beside those of `env`.

    An object store that `env` names is used instead of the folder in `data`.
    """
    services = {KAFKA: kafka, DATABASE: database_url}
    if names_object_store(env):
        return services
    return {**services, "MILLRACE_OBJECTS_ROOT": str(data.absolute() / "objects")}


def refuse_reserved_variables(env: Mapping[str, str]) -> None:
    """Refuse what would not count, and parts of an installation. Raises SettingsError: what does.

    See `require_all_or_none`.
    """
    require_all_or_none(env)
    ports = {port for _, _, port in CONTROL_PLANE.values() if port}
    instead = {
        **dict.fromkeys([*ports, "MILLRACE_GPU_METRICS_PORT"], "DATA/stack.json tells the ports"),
        "MILLRACE_API_HOST": f"the API listens on {HOST} alone",
        "MILLRACE_API_PORT": "give --port",
        "MILLRACE_BATCHER_JOB_CLASS": "a batcher of each class is started",
        "MILLRACE_ENGINE_KIND": "give --engine",
        "MILLRACE_ENGINE_MODEL_NAME": "give --model",
        "MILLRACE_ENGINE_MODEL_PATH": "give --model",
        "MILLRACE_GPU_POOL": "each --model has a pool of its own",
        MEMBERS_FOLDER: "each role has a folder of its own",
    }
    if refused := [f"{name}: {what}" for name, what in sorted(instead.items()) if name in env]:
        raise SettingsError(f"`millrace up` sets these itself: {'; '.join(refused)}")


def temporary_folder(data: Path) -> Path:
    """Return where roles leave temporary files: what a killed one leaves goes at the next start."""
    return data.absolute() / "tmp"


def replica_env(model: ServedModel, engine: Mapping[str, str]) -> dict[str, str]:
    """Return what a replica of `model` reads beside the shared variables."""
    env = {
        "MILLRACE_GPU_POOL": model.pool,
        "MILLRACE_ENGINE_KIND": model.engine,
        "MILLRACE_ENGINE_MODEL_NAME": model.name,
        **engine,
    }
    if model.path is not None:
        env["MILLRACE_ENGINE_MODEL_PATH"] = str(model.path)
    return env


def served_classes(env: Mapping[str, str], pool: str) -> Sequence[str]:
    """Return the classes that a replica reads under `env`. Raises SettingsError."""
    job_class = ReplicaSettings.from_env({**env, "MILLRACE_GPU_POOL": pool}).job_class
    return (job_class,) if job_class in JOB_CLASSES else JOB_CLASSES


def api_env(port: int) -> dict[str, str]:
    """Return what the api reads beside the shared variables."""
    return {"MILLRACE_API_HOST": HOST, "MILLRACE_API_PORT": str(port)}
