"""The routes of online calls as raw ASGI, in front of FastAPI, whose overhead would dominate."""

from functools import partial
from types import SimpleNamespace
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.client_connection import client_connection
from api.http.errors import ApiError, error_response
from api.http.middleware import count_for_tenant, request_id_of
from api.online.exchange import Exchange, headers_by_name
from api.online.memory_limits import BodyReservation, body_memory_limit
from api.online.online_runtime import OnlineRuntime
from api.online.pipeline import CallPipeline
from registry.models import ENDPOINTS

_ROUTES: Final = {path: SimpleNamespace(path=path) for path in ENDPOINTS}


class OnlineApp:
    """Serves online calls, and passes every other request on."""

    def __init__(self, online: OnlineRuntime, others: ASGIApp) -> None:
        """`others` serves all requests that are not online calls."""
        self._pipeline = CallPipeline(online)
        self._clock = online.clock
        settings = online.settings
        self._body_limit = body_memory_limit(
            settings.bodies_bytes_max, body_bytes_max=settings.bytes_max
        )
        self._response_limit = online.services.response_limit
        self._others, self._count_request = others, online.load.count_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        self._count_request()
        route = _ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._others(scope, receive, send)
            return
        scope["route"] = route  # for the metrics of the middleware
        if scope["method"] != "POST":
            refusal = ApiError(
                405, "This route accepts only POST requests.", headers={"allow": "POST"}
            )
            await error_response(refusal)(scope, receive, send)
            return
        exchange = Exchange(
            request_id=request_id_of(scope),
            endpoint=scope["path"],
            headers=headers_by_name(scope["headers"]),
            receive=receive,
            send=send,
            connection=client_connection(scope),
            body_reservation=BodyReservation(self._body_limit),
            arrived_s=self._clock.monotonic_s(),
            count_for_tenant=partial(count_for_tenant, scope),
            response_limit=self._response_limit,
            client_address=scope["client"][0] if scope.get("client") else None,
        )
        try:
            await self._pipeline.serve(exchange)
        finally:
            exchange.body_reservation.release()
