"""HEAD wherever there is GET: the same head, and nothing of the body is made."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _AnsweredError(Exception):
    """The head is sent, so whoever would go on with the body ends here."""


class HeadAsGet:
    """Serves HEAD by the route of GET, and stops that once its head is out.

    Some bodies are long, and a stream of events may have no end.
    """

    def __init__(self, app: ASGIApp) -> None:
        """`app` need not know HEAD."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            raise _AnsweredError

        # Ranges are of GET alone (RFC 9110, 14.2).
        headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
        asked = {**scope, "method": "GET", "headers": headers}
        try:
            await self._app(asked, receive, send_head)
        except _AnsweredError:
            pass
        finally:
            if "route" in asked:
                scope["route"] = asked["route"]  # for the metrics of the envelope
