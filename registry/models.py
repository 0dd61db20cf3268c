"""The model registry: registers versions and finds the version that serves new jobs."""

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
"""All endpoints that an engine may serve."""

ENGINES: Final = ("vllm", "openai_http", "simulated")
NAME_CHARS_MAX: Final = 256
_POOL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")  # part of topic names
_TEXT: Final = re.compile(r"[!-~]{1,256}")  # visible ASCII: valid in every header and label


class InvalidModelError(MillraceError):
    """The model is not valid."""

    code = "model_refused"
    disposition = Disposition.REJECT


class ModelVersionConflictError(InvalidModelError):
    """The version is registered with another pool, engine or endpoints."""

    code = "model_differs"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """An immutable version of a model, and the pool that serves it."""

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
    """Register a version; the version of a name registered last serves new jobs.

    Registering an existing version again only makes it the last one. Raises InvalidModelError for
    an invalid value, and ModelVersionConflictError.
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
    """Return the serving version of every model, ordered by name."""
    return [_model(row) for row in connection.execute(_serving_query())]


def list_pools(connection: sa.Connection) -> dict[str, list[str]]:
    """Return the pools of all model versions, old ones too, with the versions as `name@version`."""
    columns = (model_versions.c.pool, model_versions.c.name, model_versions.c.version)
    pools: dict[str, list[str]] = {}
    for pool, name, version in connection.execute(sa.select(*columns).order_by(*columns)):
        pools.setdefault(pool, []).append(f"{name}@{version}")
    return pools


def find_model(connection: sa.Connection, name: str) -> ModelVersion | None:
    """Return the serving version of a model, or None. Accepts any text as name."""
    if "\x00" in name or len(name) > NAME_CHARS_MAX:
        return None
    row = connection.execute(_serving_query().where(model_versions.c.name == name)).one_or_none()
    return None if row is None else _model(row)


def _serving_query() -> sa.Select[Any]:
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
    is_invalid = {
        "name": not _TEXT.fullmatch(name),
        "version": not _TEXT.fullmatch(version),
        "pool": not _POOL.fullmatch(pool),
        "engine": engine not in ENGINES,
        "endpoints": not endpoints or not set(endpoints) <= set(ENDPOINTS),
    }
    fields = ", ".join(field for field, invalid in is_invalid.items() if invalid)
    if fields:
        raise InvalidModelError(f"Not valid: {fields}.", name=name)
