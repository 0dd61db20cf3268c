"""Services of another installation that the environment names: log, database and objects.

They hold one truth together. A stack that took only some of them would fail the jobs of a database
whose files it lacks, send its outbox to a broker that is thrown away, or commit offsets of a log
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
    """Whether `env` names an object store; the kind `local` alone names no folder."""
    return env.get(_OBJECTS_KIND, "local") != "local" or _OBJECTS_ROOT in env


def external_service_variables(env: Mapping[str, str]) -> str:
    """Return the variables by which `env` names a service of somebody else, for people; or ""."""
    named = [name for name in (KAFKA, DATABASE, _OBJECTS_ROOT) if name in env]
    if env.get(_OBJECTS_KIND, "local") != "local":
        named.append(_OBJECTS_KIND)
    return ", ".join(named)


def require_all_or_none(env: Mapping[str, str]) -> None:
    """Refuse an installation of which `env` names a part. Raises SettingsError: what is missing."""
    named = {
        KAFKA: KAFKA in env,
        DATABASE: DATABASE in env,
        f"{_OBJECTS_ROOT} or {_OBJECTS_KIND}=s3": names_object_store(env),
    }
    if len(set(named.values())) == 1:
        return
    missing = ", ".join(name for name, is_named in named.items() if not is_named)
    raise SettingsError(
        f"{external_service_variables(env)}: log, database and objects of an installation go together: "
        f"set {missing}, too, or unset these"
    )
