"""Models by name: what may be asked for, and which version serves new jobs."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on, insert

from core.errors import Disposition, MillraceError
from registry.tables import model_versions

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/classify",
)
"""Every endpoint that some engine can serve."""

ENGINES: Final = ("vllm", "openai_http", "simulated")
NAME_CHARS_MAX: Final = 256
_POOL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")  # part of topic names
_TEXT: Final = re.compile(r"[!-~]{1,256}")  # visible ASCII, so that it fits every header and label


class InvalidModelError(MillraceError):
    """The model cannot be registered like this."""

    code = "model_refused"
    disposition = Disposition.REJECT


class ModelVersionConflictError(InvalidModelError):
    """The version exists and differs."""

    code = "model_differs"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """An immutable version of a model and where it is served."""

    name: str
    version: str
    pool: str
    engine: str
    endpoints: tuple[str, ...]
    created_at: datetime


def add_model(
    connection: sa.Connection,
    name: str,
    version: str,
    *,
    pool: str,
    engine: str,
    endpoints: tuple[str, ...],
) -> ModelVersion:
    """Register a version; the one registered last under its name serves new jobs.

    Registering the same again changes nothing but that, and returns what is there.
    Raises InvalidModelError for a bad value, ModelVersionConflictError.
    """
    _check(name, version, pool=pool, engine=engine, endpoints=endpoints)
    connection.execute(
        insert(model_versions)
        .values(
            name=name,
            version=version,
            pool=pool,
            engine=engine,
            endpoints=list(endpoints),
            registered_at=sa.func.clock_timestamp(),
        )
        .on_conflict_do_update(
            index_elements=[model_versions.c.name, model_versions.c.version],
            set_={"registered_at": sa.func.clock_timestamp()},
        )
    )
    row = connection.execute(
        sa.select(model_versions).where(
            model_versions.c.name == name, model_versions.c.version == version
        )
    ).one()
    if (row.pool, row.engine, set(row.endpoints)) != (pool, engine, set(endpoints)):
        raise ModelVersionConflictError(name=name, version=version)
    return _model(row)


def list_models(connection: sa.Connection) -> list[ModelVersion]:
    """Return the version that serves new jobs of every name, by name."""
    return [_model(row) for row in connection.execute(_serving())]


def find_model(connection: sa.Connection, name: str) -> ModelVersion | None:
    """Return the version of a name that serves new jobs, or None. Any text may be asked for."""
    if "\x00" in name or len(name) > NAME_CHARS_MAX:
        return None
    row = connection.execute(_serving().where(model_versions.c.name == name)).one_or_none()
    return None if row is None else _model(row)


def _serving() -> sa.Select[Any]:
    order = (
        model_versions.c.name,
        model_versions.c.registered_at.desc(),
        model_versions.c.id.desc(),
    )
    columns = [c for c in model_versions.c if c.name not in {"id", "registered_at"}]
    return sa.select(*columns).ext(distinct_on(model_versions.c.name)).order_by(*order)


def _model(row: sa.Row[Any]) -> ModelVersion:
    return ModelVersion(
        row.name, row.version, row.pool, row.engine, tuple(row.endpoints), row.created_at
    )


def _check(name: str, version: str, *, pool: str, engine: str, endpoints: tuple[str, ...]) -> None:
    mistakes = {
        "name": not _TEXT.fullmatch(name),
        "version": not _TEXT.fullmatch(version),
        "pool": not _POOL.fullmatch(pool),
        "engine": engine not in ENGINES,
        "endpoints": not endpoints or not set(endpoints) <= set(ENDPOINTS),
    }
    wrong = ", ".join(field for field, is_wrong in mistakes.items() if is_wrong)
    if wrong:
        raise InvalidModelError(f"Not valid: {wrong}.", name=name)
