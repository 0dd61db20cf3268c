"""The API client of user commands: the official OpenAI client with Millrace's URL and key."""

import functools
import inspect
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

import typer

from cli.exits import CommandError, KeyMissingError, NotFoundError

if TYPE_CHECKING:
    import httpx2
    import openai

Client: TypeAlias = "openai.OpenAI"
Batch: TypeAlias = "openai.types.Batch"
"""Names of classes of the official client, which takes a second to import."""

DEFAULT_URL = "http://127.0.0.1:8080"

READ_TIMEOUT_S: Final = 60.0
"""Longest silence of the server in one attempt; it answers nearly all calls within 10 s."""

_STREAM_READ_TIMEOUT_S: Final = 90.0  # the server sends a keep-alive every minute or sooner
_CONNECT_TIMEOUT_S: Final = 5.0
_READ_TIMEOUT_S_MIN: Final = 1.0  # a healthy server may need that long
_JSON: Final = "application/json"
_API_CONTENT_TYPES: Final = (_JSON, "text/event-stream")
_CHAT: Final = "/v1/chat/completions"

UrlOption: TypeAlias = Annotated[
    str, typer.Option("--url", envvar="MILLRACE_URL", help="URL of the API, without /v1.")
]
KeyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--key",
        envvar="MILLRACE_KEY",
        show_default=False,
        help="API key. Prefer the variable: other users can read command lines.",
    ),
]
QuietOption: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")
]


class NotMillraceError(CommandError):
    """The server at this URL is not a Millrace API."""


class NoChatModelError(NotFoundError):
    """No listed model serves chat; --model can name one that is not listed."""


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --url and --key, and their client as its first argument."""
    _, *own = inspect.signature(command).parameters.values()
    options = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
        for name, default, option in (("url", DEFAULT_URL, UrlOption), ("key", "", KeyOption))
    )

    @functools.wraps(command)
    def run(*, url: str, key: str, **arguments: object) -> None:
        with connect(url, key) as connected:
            command(connected, **arguments)

    signature = inspect.Signature([*own, *options])
    # Typer reads both; it cannot resolve the class of the client, which is not imported yet.
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
    return run


def connect(url: str, key: str) -> Client:
    """Return a client; nothing is sent yet.

    Raises KeyMissingError, typer.BadParameter. Calls raise NotMillraceError when the response is
    not one of the Millrace API.
    """
    api_key, base_url = checked_key(key), api_base(url)

    import openai  # importing takes a second; operator commands do not need it

    timeout = openai.Timeout(READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    client = openai.OpenAI(api_key=api_key, base_url=base_url, timeout=timeout)
    # A hook instead of a custom transport: the client closes only a transport that it created.
    client._client.event_hooks = {"response": [_require_millrace]}  # noqa: SLF001
    return client


def with_time_limit(client: Client, left_s: float) -> Client:
    """Return the client with a read timeout such that all attempts together take about `left_s`."""
    timeout_s = max(_READ_TIMEOUT_S_MIN, left_s / (client.max_retries + 1))
    return client if timeout_s >= READ_TIMEOUT_S else _with_read_timeout(client, timeout_s)


def with_stream_timeout(client: Client) -> Client:
    """Return the client with the read timeout of streams."""
    return _with_read_timeout(client, _STREAM_READ_TIMEOUT_S)


def _with_read_timeout(client: Client, timeout_s: float) -> Client:
    import openai

    connect_s = min(_CONNECT_TIMEOUT_S, timeout_s)
    return client.with_options(timeout=openai.Timeout(timeout_s, connect=connect_s))


def checked_key(key: str) -> str:
    """Return the key without surrounding white space.

    Raises KeyMissingError, typer.BadParameter.
    """
    stripped = key.strip()
    if not stripped:
        raise KeyMissingError
    if not (stripped.isascii() and stripped.isprintable()):
        raise typer.BadParameter("contains characters that no key has", param_hint="--key")
    return stripped


def api_base(url: str) -> str:
    """Return the base URL of the API, with `/v1` appended unless `url` ends with it.

    Raises typer.BadParameter.
    """
    if not _is_http_url(url):
        raise typer.BadParameter(f"give http://HOST:PORT, not {url!r}", param_hint="--url")
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def require_id(text: str | None) -> str | None:
    """Return an id of the command line unchanged.

    Raises typer.BadParameter for an empty id and for one of dots only: it would change the route.
    """
    if text is not None and not text.strip("."):
        raise typer.BadParameter("this is not an id")
    return text


def path_segment(text: str) -> str:
    """Percent-encode an id as one segment of an API path."""
    return quote(text, safe="")


def first_chat_model(client: Client) -> str:
    """Return the first listed model that serves chat. Raises NoChatModelError."""
    for model in client.models.list():
        if _CHAT in extension_fields(model).get("endpoints", ()):
            return model.id
    raise NoChatModelError


def transient_errors() -> tuple[type[Exception], ...]:
    """Return the client's errors that a retry may cure, for an `except` clause.

    They mean that the server is unavailable, failed or is overloaded. Rejected requests are not
    among them.
    """
    import httpx2
    import openai

    return (
        httpx2.TransportError,  # raised in the middle of a stream
        openai.APIConnectionError,
        openai.InternalServerError,
        openai.RateLimitError,
    )


def drop_none(**values: Any) -> dict[str, Any]:
    """Return the values that are not None: the parameters that the user gave."""
    return {name: value for name, value in values.items() if value is not None}


def get_json(client: Client, path: str, **parameters: object) -> dict[str, Any]:
    """Return the JSON object at a path of the API; parameters that are None are left out."""
    given = drop_none(**parameters)
    return json_object(client.get(path, cast_to=object, options={"params": given}))


def post_json(client: Client, path: str, body: object) -> dict[str, Any]:
    """Send a JSON body to a path of the API and return the JSON object of the response."""
    return json_object(client.post(path, cast_to=object, body=body))


def json_object(response: object) -> dict[str, Any]:
    """Return a decoded response as a dict; empty when it is not a JSON object."""
    return response if isinstance(response, dict) else {}


def extension_fields(resource: Any) -> dict[str, Any]:
    """Return the `millrace` field of a client object; empty where another server sent it."""
    fields = (resource.model_extra or {}).get("millrace")
    return json_object(fields)


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading `port` raises ValueError for one that is not a TCP port number.
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(named) and url.isprintable() and " " not in url


def _require_millrace(response: "httpx2.Response") -> None:
    """Raise NotMillraceError for a successful response that the API cannot have sent.

    API responses are event streams or JSON objects with an `object` field. File contents have any
    type; commands retrieve the file's object first.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_no_object = (
        response.url.path.endswith("/content") or response.status_code == HTTPStatus.NO_CONTENT
    )
    if not response.is_success or has_no_object:
        return
    if kind not in _API_CONTENT_TYPES or (kind == _JSON and not _is_api_object(response.read())):
        origin = f"{response.url.scheme}://{response.url.netloc.decode()}"
        raise NotMillraceError(f"{origin} is not a Millrace API. Check --url or MILLRACE_URL.")


def _is_api_object(content: bytes) -> bool:
    try:
        found = json.loads(content)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("object"), str)
