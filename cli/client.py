"""Configures the official OpenAI client for this installation."""

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

import typer

from cli.exits import CommandError, KeyMissingError

if TYPE_CHECKING:
    import httpx2
    import openai

DEFAULT_URL = "http://127.0.0.1:8080"

RESPONSE_TIMEOUT_S: Final = 60.0
"""Read timeout of one try of a call; nearly all answers take less than 10 s."""

_STREAM_TIMEOUT_S: Final = 90.0
_CONNECT_S: Final = 5.0
_TRY_S_MIN: Final = 1.0  # even with less time left: a healthy server may need it
_JSON: Final = "application/json"
_API_CONTENT_TYPES: Final = (_JSON, "text/event-stream")

UrlOption: TypeAlias = Annotated[
    str,
    typer.Option("--url", envvar="MILLRACE_URL", help="Where the API listens, without /v1."),
]
KeyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--key",
        envvar="MILLRACE_KEY",
        show_default=False,
        help="API key. Better in the variable: others can read command lines.",
    ),
]
QuietOption: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")
]


class NotMillraceError(CommandError):
    """The server at this address is not a Millrace API."""


def connect(url: str, key: str) -> "openai.OpenAI":
    """Return a client, which connects lazily. Raises KeyMissingError, typer.BadParameter.

    Its calls raise NotMillraceError for an answer that the API never gives.
    """
    api_key, base_url = clean_key(key), api_base(url)

    import openai  # takes a second, which operators' commands avoid

    timeout = openai.Timeout(RESPONSE_TIMEOUT_S, connect=_CONNECT_S)
    client = openai.OpenAI(api_key=api_key, base_url=base_url, timeout=timeout)
    # Not a transport of our own: the client only closes one that it has created.
    client._client.event_hooks = {"response": [_require_api_answer]}  # noqa: SLF001
    return client


def with_time_limit(client: "openai.OpenAI", left_s: float) -> "openai.OpenAI":
    """Return the client for a call that may take `left_s` seconds, all its tries together."""
    timeout_s = max(_TRY_S_MIN, left_s / (client.max_retries + 1))
    return client if timeout_s >= RESPONSE_TIMEOUT_S else _with_timeout(client, timeout_s)


def with_stream_timeout(client: "openai.OpenAI") -> "openai.OpenAI":
    """Return the client for a stream, in which the server sends something every minute."""
    return _with_timeout(client, _STREAM_TIMEOUT_S)


def _with_timeout(client: "openai.OpenAI", timeout_s: float) -> "openai.OpenAI":
    import openai

    connect_s = min(_CONNECT_S, timeout_s)
    return client.with_options(timeout=openai.Timeout(timeout_s, connect=connect_s))


def clean_key(key: str) -> str:
    """Return a key without surrounding white space. Raises KeyMissingError, typer.BadParameter."""
    stripped = key.strip()
    if not stripped:
        raise KeyMissingError
    if not (stripped.isascii() and stripped.isprintable()):
        raise typer.BadParameter(
            "holds characters that are not allowed in keys", param_hint="--key"
        )
    return stripped


def api_base(url: str) -> str:
    """Return the base URL of API clients, with one `/v1`. Raises typer.BadParameter."""
    if not _is_address(url):
        raise typer.BadParameter(f"{url!r} is not a URL: give http://HOST:PORT", param_hint="--url")
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def json_object(answer: object) -> dict[str, Any]:
    """Return an untyped answer of the API as an object, empty if it is not one."""
    return answer if isinstance(answer, dict) else {}


def transient_errors() -> tuple[type[Exception], ...]:
    """Return the client's errors after which a retry may succeed, for `except`.

    For a server that is unavailable, fails or is busy; not for one that refuses the request.
    """
    import httpx2
    import openai

    return (
        httpx2.TransportError,  # of an interrupted stream
        openai.APIConnectionError,
        openai.InternalServerError,
        openai.RateLimitError,
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading `port` raises ValueError for an invalid one.
        is_complete = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(is_complete) and url.isprintable() and " " not in url


def _require_api_answer(answer: "httpx2.Response") -> None:
    """Raise NotMillraceError for a successful answer that the API never gives.

    File content has any type. All other JSON of the API is an object with an `object` field.
    """
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_content = answer.url.path.endswith("/content") or answer.status_code == HTTPStatus.NO_CONTENT
    if not answer.is_success or is_content:
        return
    if kind not in _API_CONTENT_TYPES or (kind == _JSON and not _is_api_object(answer.read())):
        where = f"{answer.url.scheme}://{answer.url.netloc.decode()}"
        raise NotMillraceError(f"{where} is not a Millrace API. Set --url or MILLRACE_URL.")


def _is_api_object(content: bytes) -> bool:
    try:
        found = json.loads(content)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("object"), str)
