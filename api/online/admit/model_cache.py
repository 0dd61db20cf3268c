"""Cache of the models that are served, so that a call needs no query to Postgres."""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from api.http.errors import ApiError
from api.online.calls import time_limit
from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from registry.errors import AmbiguousVersionError, ModelRetiredError
from registry.models import (
    ANY_TENANT,
    ModelVersion,
    find_retired,
    is_model_text,
    list_models,
    resolve,
)

_LOG = logging.getLogger(__name__)
_UNKNOWN_MAX: Final = 10_000
_UNKNOWN_S: Final = 2.0  # how long a text that was not found is not looked up again
_PINNED_MAX: Final = 10_000

_Asked: TypeAlias = tuple[UUID | None, str]
"""A tenant, and the text by which it names a model."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a text names no model that may be used."""

    status: int
    message: str
    code: str

    def error(self) -> ApiError:
        return ApiError(self.status, self.message, code=self.code, param="model")


_UNKNOWN: Final = _Refusal(404, "The model does not exist.", "model_not_found")


class ModelCache:
    """The models by name and alias, refreshed in the background, and the versions last asked for.

    A stale entry is harmless while Postgres is unavailable: versions are immutable and stay served.
    A name belongs to one tenant or to all, so one entry serves all who may see it.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._models: dict[str, ModelVersion] = {}
        self._pinned: dict[str, ModelVersion] = {}  # by `name@version`, and names since a refresh
        self._refusals: dict[_Asked, tuple[float, _Refusal]] = {}  # until when
        self._lookups: dict[_Asked, asyncio.Task[ModelVersion | _Refusal]] = {}

    async def find(
        self, name: str, endpoint: str, *, left_s: float, tenant_id: UUID | None = None
    ) -> ModelVersion:
        """Return the version that a tenant gets for `name` at `endpoint`, within `left_s`.

        Raises ApiError: 404, 400, 504; DatabaseUnavailableError.
        """
        model = self._models.get(name) or self._pinned.get(name)
        if model is None:  # only then is a timer needed
            async with time_limit(left_s):
                model = await self._look_up(name, tenant_id)
        if model.tenant_id is not None and model.tenant_id != tenant_id:
            raise _UNKNOWN.error()
        if endpoint not in model.endpoints:
            raise ApiError(
                400,
                f"The model is not served at this endpoint, but at {', '.join(model.endpoints)}.",
                code="endpoint_not_supported",
                param="model",
            )
        return model

    def serving(self, endpoint: str, tenant_id: UUID) -> dict[str, str]:
        """Return the pools of the known models that a tenant gets at an endpoint, by name."""
        return {
            name: model.pool
            for name, model in (self._pinned | self._models).items()
            if endpoint in model.endpoints and model.tenant_id in {None, tenant_id}
        }

    def known_pool(self, name: str, tenant_id: UUID) -> str | None:
        """Return the pool of a model that a tenant may use; None if it is not known here."""
        model = self._models.get(name) or self._pinned.get(name)
        if model is None or model.tenant_id not in {None, tenant_id}:
            return None
        return model.pool

    async def refresh_periodically(self, every_s: float) -> None:
        """Refresh until cancelled. During an outage of Postgres the entries stay."""
        while True:
            try:
                pinned = [*self._pinned.values()]
                models, retired = await self._database.run_across_tenants(read_models, pinned)
                self._models = {model.requested_name: model for model in models}
                self._pinned = {
                    text: model
                    for text, model in self._pinned.items()
                    if "@" in text and model.id not in retired
                }
            except DatabaseUnavailableError:
                _LOG.warning("models were not refreshed")
            await asyncio.sleep(every_s)

    async def _look_up(self, name: str, tenant_id: UUID | None) -> ModelVersion:
        """Query Postgres once, however many calls of a tenant wait for the same name."""
        asked, now_s = (tenant_id, name), self._clock.monotonic_s()
        until_s, known = self._refusals.get(asked, (0.0, _UNKNOWN))
        if until_s > now_s or not is_model_text(name):
            raise known.error()
        lookup = self._lookups.get(asked)
        if lookup is None:
            query = self._database.run_across_tenants(find_usable, name, tenant_id)
            lookup = asyncio.ensure_future(query)
            self._lookups[asked] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(asked, None))
        found = await asyncio.shield(lookup)
        if isinstance(found, _Refusal):
            if len(self._refusals) >= _UNKNOWN_MAX:
                self._refusals.clear()
            self._refusals[asked] = now_s + _UNKNOWN_S, found
            raise found.error()
        if len(self._pinned) >= _PINNED_MAX:
            self._pinned.clear()
        self._pinned[name] = found
        return found


def read_models(
    connection: sa.Connection, pinned: Collection[ModelVersion]
) -> tuple[list[ModelVersion], set[str]]:
    """Return the models of all names and tenants, and which of `pinned` are retired now."""
    return list_models(connection, tenant_id=ANY_TENANT), find_retired(connection, pinned)


def find_usable(
    connection: sa.Connection, name: str, tenant_id: UUID | None
) -> ModelVersion | _Refusal:
    """Return the version that a tenant gets for a text, or why it gets none."""
    try:
        found = resolve(connection, name, tenant_id=tenant_id)
    except AmbiguousVersionError as ambiguous:
        return _Refusal(400, str(ambiguous), ambiguous.code)
    if found is None:
        return _UNKNOWN
    if found.retired_at is not None:
        retired = ModelRetiredError()
        return _Refusal(404, str(retired), retired.code)
    return found
