"""Detects external services in the environment: Kafka, database and object store.

Their data belongs together, so a stack must use all three or none. With some of them, it would fail
jobs whose files it lacks, send the outbox to a temporary broker, or commit offsets of unknown jobs.
"""

from collections.abc import Mapping
from typing import Final

from core.errors import SettingsError

KAFKA: Final = "MILLRACE_KAFKA_BOOTSTRAP_SERVERS"
DATABASE: Final = "MILLRACE_DATABASE_URL"
_OBJECTS_KIND: Final = "MILLRACE_OBJECTS_KIND"
_OBJECTS_ROOT: Final = "MILLRACE_OBJECTS_ROOT"


def names_object_store(env: Mapping[str, str]) -> bool:
    """Whether `env` names an object store; kind `local` needs a folder too."""
    return env.get(_OBJECTS_KIND, "local") != "local" or _OBJECTS_ROOT in env


def named_services(env: Mapping[str, str]) -> str:
    """Return the variables in `env` that name external services, comma-separated."""
    named = [name for name in (KAFKA, DATABASE, _OBJECTS_ROOT) if name in env]
    if env.get(_OBJECTS_KIND, "local") != "local":
        named.append(_OBJECTS_KIND)
    return ", ".join(named)


def require_all_or_none(env: Mapping[str, str]) -> None:
    """Reject an incomplete installation. Raises SettingsError with the missing variables."""
    named = {
        KAFKA: KAFKA in env,
        DATABASE: DATABASE in env,
        f"{_OBJECTS_ROOT} or {_OBJECTS_KIND}=s3": names_object_store(env),
    }
    if len(set(named.values())) == 1:
        return
    missing = ", ".join(name for name, is_named in named.items() if not is_named)
    raise SettingsError(
        f"{named_services(env)}: log, database and objects of an installation go together: "
        f"set {missing}, too, or unset these"
    )
