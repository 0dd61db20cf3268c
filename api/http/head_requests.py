"""HEAD for every route that supports GET."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _HeadSentError(Exception):
    """The head is sent; stops the route before it creates the body."""


class HeadAsGet:
    """Serves HEAD with the route of GET, and stops the route after the head.

    Some bodies are long, and an event stream may be endless.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            raise _HeadSentError

        # Ranges apply only to GET (RFC 9110, 14.2).
        headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
        get_scope = {**scope, "method": "GET", "headers": headers}
        try:
            await self._app(get_scope, receive, send_head)
        except _HeadSentError:
            pass
        finally:
            if "route" in get_scope:
                scope["route"] = get_scope["route"]  # for the metrics of the middleware
