"""Kafka, Postgres and the object store of an existing installation, named by variables.

The three belong together. With only some of them, a stack would fail the jobs of a database whose
files it does not have, relay the outbox to its own temporary broker, or commit offsets of a log
whose jobs it does not know.
"""

from collections.abc import Mapping
from typing import Final

from core.errors import SettingsError

KAFKA: Final = "MILLRACE_KAFKA_BOOTSTRAP_SERVERS"
DATABASE: Final = "MILLRACE_DATABASE_URL"
_OBJECTS_KIND: Final = "MILLRACE_OBJECTS_KIND"
_OBJECTS_ROOT: Final = "MILLRACE_OBJECTS_ROOT"


def names_object_store(env: Mapping[str, str]) -> bool:
    """Whether `env` names an object store; the kind `local` does so only with a folder."""
    return env.get(_OBJECTS_KIND, "local") != "local" or _OBJECTS_ROOT in env


def external_service_variables(env: Mapping[str, str]) -> str:
    """Return the names of the variables in `env` that name an external service, or ""."""
    named = [name for name in (KAFKA, DATABASE, _OBJECTS_ROOT) if name in env]
    if env.get(_OBJECTS_KIND, "local") != "local":
        named.append(_OBJECTS_KIND)
    return ", ".join(named)


def require_all_or_none(env: Mapping[str, str]) -> None:
    """Raise SettingsError when `env` names some of the services and not all of them."""
    named = {
        KAFKA: KAFKA in env,
        DATABASE: DATABASE in env,
        f"{_OBJECTS_ROOT} or {_OBJECTS_KIND}=s3": names_object_store(env),
    }
    if len(set(named.values())) == 1:
        return
    missing = ", ".join(name for name, is_named in named.items() if not is_named)
    raise SettingsError(
        f"{external_service_variables(env)}: log, database and objects of an installation go "
        f"together: set {missing}, too, or unset these"
    )
