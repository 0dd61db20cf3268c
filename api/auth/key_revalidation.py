"""Whether the key of a long request still works, asked now and then while it goes on."""

from contextlib import suppress
from typing import Final

from fastapi import Request

from api.auth.principals import authenticate_headers
from api.runtime.database import DatabaseUnavailableError
from api.runtime.services import Services

CHECK_S: Final = 2.0
"""Between two looks: a key that is revoked ends what was begun with it."""

_AWAY_S: Final = 30.0  # to the next look when Postgres did not answer, which may have taken seconds


class KeyRevalidator:
    """Watches over one request, from its start on."""

    def __init__(self, request: Request, services: Services) -> None:
        """The key of `request` works now."""
        self._headers, self._services = request.headers, services
        self._due_s = services.keys.now_s() + CHECK_S

    async def check(self) -> None:
        """Look again when it is time. Raises ApiError (401) when the key works no longer.

        While Postgres does not answer, what was begun goes on.
        """
        if self._services.keys.now_s() < self._due_s:
            return
        with suppress(DatabaseUnavailableError):
            await self.check_now()

    async def check_now(self) -> None:
        """Look at once; `check` counts it. Raises ApiError (401), DatabaseUnavailableError."""
        self._due_s = self._services.keys.now_s() + _AWAY_S  # also when nobody waits to the end
        bearer, x_api_key = self._headers.get("authorization"), self._headers.get("x-api-key")
        await authenticate_headers(bearer, x_api_key, self._services)
        self._due_s = self._services.keys.now_s() + CHECK_S
