"""Cache of the models that are served, so that a call needs no query to Postgres."""

import asyncio
import logging
from typing import Final

from api.http.errors import ApiError
from api.online.calls import time_limit
from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from registry.models import NAME_CHARS_MAX, ModelVersion, find_model, list_models

_LOG = logging.getLogger(__name__)
_UNKNOWN_MAX: Final = 10_000
_UNKNOWN_S: Final = 2.0  # how long a name that was not found is not looked up again


class ModelCache:
    """The models by name, refreshed in the background.

    A stale entry is harmless while Postgres is unavailable: versions are immutable and stay served.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._models: dict[str, ModelVersion] = {}
        self._unknown: dict[str, float] = {}  # name to the time from which it may be looked up
        self._lookups: dict[str, asyncio.Task[ModelVersion | None]] = {}

    async def find(self, name: str, endpoint: str, *, left_s: float) -> ModelVersion:
        """Return the version that serves `name` at `endpoint`, within `left_s`.

        Raises ApiError: 404, 400, 504; DatabaseUnavailableError.
        """
        model = self._models.get(name)
        if model is None:  # only then is a timer needed
            async with time_limit(left_s):
                model = await self._look_up(name)
        if model is None:
            raise ApiError(404, "The model does not exist.", code="model_not_found", param="model")
        if endpoint not in model.endpoints:
            raise ApiError(
                400,
                f"The model is not served at this endpoint, but at {', '.join(model.endpoints)}.",
                code="endpoint_not_supported",
                param="model",
            )
        return model

    def serving(self, endpoint: str) -> dict[str, str]:
        """Return the pools of the known models that are served at an endpoint, by name."""
        return {
            model.name: model.pool for model in self._models.values() if endpoint in model.endpoints
        }

    async def refresh_periodically(self, every_s: float) -> None:
        """Refresh until cancelled. During an outage of Postgres the entries stay."""
        while True:
            try:
                models = await self._database.run_across_tenants(list_models)
                self._models = {model.name: model for model in models}
            except DatabaseUnavailableError:
                _LOG.warning("models were not refreshed")
            await asyncio.sleep(every_s)

    async def _look_up(self, name: str) -> ModelVersion | None:
        """Query Postgres once, however many calls wait for the same name."""
        now_s = self._clock.monotonic_s()
        if len(name) > NAME_CHARS_MAX or self._unknown.get(name, 0.0) > now_s:
            return None
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = asyncio.ensure_future(self._database.run_across_tenants(find_model, name))
            self._lookups[name] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(name, None))
        model = await asyncio.shield(lookup)
        if model is None:
            if len(self._unknown) >= _UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[name] = now_s + _UNKNOWN_S
        else:
            self._models[name] = model
        return model
