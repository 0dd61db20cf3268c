"""The values of the scaler as JSON over HTTP: for HPA's external metrics and for Prometheus.

`GET /scaling/{pool}` with the optional parameters `gpuType`, `zone` and `spot`.
"""

import asyncio
import hmac
from pathlib import Path
from typing import Final

from aiohttp import web

from autoscaler.actuators.keda.external_scaler import ScalerReading
from autoscaler.actuators.keda.scaling_values import KindSelector, UnavailableValueError

_TOKEN_BYTES_MAX: Final = 4 * 1024
_LINE_BYTES_MAX: Final = 4 * 1024
_KEEPALIVE_S: Final = 30.0
_STOP_S: Final = 1.0


class ValueServer:
    """An HTTP server with one route."""

    def __init__(
        self, reading: ScalerReading, host: str, port: int, token_file: Path | None
    ) -> None:
        """Port 0: any free one. With `token_file` a call needs its content as bearer token."""
        self._reading = reading
        self._host = host
        self._token_file = token_file
        self._runner: web.AppRunner | None = None
        self.port = port

    async def start(self) -> None:
        """Open the port. Raises OSError."""
        app = web.Application(client_max_size=1)
        app.router.add_get("/scaling/{pool}", self._answer)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=_KEEPALIVE_S,
            max_line_size=_LINE_BYTES_MAX,
            max_field_size=_LINE_BYTES_MAX,
            shutdown_timeout=_STOP_S,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        """Return 200 with the value, 401, 400, or 503 without a fresh decision; never a false 0."""
        if not await asyncio.to_thread(self._is_allowed, request.headers.get("authorization", "")):
            return web.json_response({"code": "unauthenticated"}, status=401)
        spot = request.query.get("spot")
        if spot not in {None, "true", "false"}:
            return web.json_response({"code": "invalid_spot"}, status=400)
        selector = KindSelector(
            request.query.get("gpuType"),
            request.query.get("zone"),
            None if spot is None else spot == "true",
        )
        pool = request.match_info["pool"]
        try:
            found = {
                "pool": pool,
                "value": self._reading.value(pool, selector),
                "target": self._reading.target(pool, selector),
            }
        except UnavailableValueError as error:
            return web.json_response({"code": error.code}, status=503)
        return web.json_response(found)

    def _is_allowed(self, header: str) -> bool:
        """Return whether the call has the token as the file has it now; without a file: always."""
        if self._token_file is None:
            return True
        try:
            with self._token_file.open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX).strip()
        except OSError:
            return False
        return bool(token) and hmac.compare_digest(header.encode(), b"Bearer " + token)
