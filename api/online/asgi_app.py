"""The hot routes in raw ASGI, in front of the framework: it costs more than all the rest."""

from types import SimpleNamespace
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.responses import ApiError, error_response
from api.online.admit.body_room import BodyRoom
from api.online.online_runtime import OnlineRuntime
from api.online.pipeline import CallPipeline
from api.online.receive.exchange import exchange_from_scope
from registry.models import ENDPOINTS

_ROUTES: Final = {path: SimpleNamespace(path=path) for path in ENDPOINTS}


class OnlineApp:
    """Serves online calls, and hands everything else on."""

    def __init__(self, online: OnlineRuntime, others: ASGIApp) -> None:
        """`others` serves what is no online call."""
        self._pipeline = CallPipeline(online)
        self._clock = online.clock
        settings = online.settings
        self._room = BodyRoom(settings.bodies_bytes_max, body_bytes_max=settings.bytes_max)
        self._readers = online.services.readers
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = _ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._others(scope, receive, send)
            return
        scope["route"] = route  # for the metrics of the envelope
        if scope["method"] != "POST":
            refusal = ApiError(
                405, "This route does not take that method.", headers={"allow": "POST"}
            )
            await error_response(refusal)(scope, receive, send)
            return
        now_s = self._clock.monotonic_s()
        exchange = exchange_from_scope(
            scope, receive, send, room=self._room, readers=self._readers, now_s=now_s
        )
        try:
            await self._pipeline.serve(exchange)
        finally:
            exchange.body_hold.release()
