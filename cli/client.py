"""The connection of user commands: the official client, pointed at this installation."""

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias
from urllib.parse import urlsplit

import typer

from cli.exits import CommandError, KeyMissingError

if TYPE_CHECKING:
    import httpx2
    import openai

DEFAULT_URL = "http://127.0.0.1:8080"

READ_TIMEOUT_S: Final = 60.0
"""How long a server may say nothing to a call, per try: it answers nearly all within 10 s."""

_STREAM_SILENCE_S: Final = 90.0
_CONNECT_S: Final = 5.0
_TRY_S_MIN: Final = 1.0  # with little time left, still as long as a good server may need
_JSON: Final = "application/json"
_OURS: Final = (_JSON, "text/event-stream")

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
    """Something else than a Millrace API answers there."""


def connect(url: str, key: str) -> "openai.OpenAI":
    """Return a client; nothing is sent yet. Raises KeyMissingError, typer.BadParameter.

    Its calls raise NotMillraceError for an answer that the API does not give.
    """
    api_key, base_url = checked_key(key), api_base(url)

    import openai  # takes a second, which commands of operators do without

    timeout = openai.Timeout(READ_TIMEOUT_S, connect=_CONNECT_S)
    client = openai.OpenAI(api_key=api_key, base_url=base_url, timeout=timeout)
    # Not a transport of our own: the client closes none but the one that it made.
    client._client.event_hooks = {"response": [_refuse_others]}  # noqa: SLF001
    return client


def with_time_limit(client: "openai.OpenAI", left_s: float) -> "openai.OpenAI":
    """Return the client for a call that may take what is left of a time, in seconds.

    All its tries together wait for that long, about, for a server that says nothing.
    """
    silence_s = max(_TRY_S_MIN, left_s / (client.max_retries + 1))
    return client if silence_s >= READ_TIMEOUT_S else _patient(client, silence_s)


def with_stream_timeout(client: "openai.OpenAI") -> "openai.OpenAI":
    """Return the client for a stream, in which the server says something at least each minute."""
    return _patient(client, _STREAM_SILENCE_S)


def _patient(client: "openai.OpenAI", silence_s: float) -> "openai.OpenAI":
    import openai

    connect_s = min(_CONNECT_S, silence_s)
    return client.with_options(timeout=openai.Timeout(silence_s, connect=connect_s))


def checked_key(key: str) -> str:
    """Return a key as it is sent, without what a copy may have put around it.

    Raises KeyMissingError, typer.BadParameter.
    """
    stripped = key.strip()
    if not stripped:
        raise KeyMissingError
    if not (stripped.isascii() and stripped.isprintable()):
        raise typer.BadParameter("holds characters that no key has", param_hint="--key")
    return stripped


def api_base(url: str) -> str:
    """Return the base URL that clients of the API take; `/v1` may be there already.

    Raises typer.BadParameter.
    """
    if not _is_address(url):
        raise typer.BadParameter(f"{url!r} is none: give http://HOST:PORT", param_hint="--url")
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def transient_errors() -> tuple[type[Exception], ...]:
    """Return what the client raises of a server that is away, fails or is busy.

    For `except`: asked again, the server may answer. What it refuses is not among them.
    """
    import httpx2
    import openai

    return (
        httpx2.TransportError,  # of a stream that is cut
        openai.APIConnectionError,
        openai.InternalServerError,
        openai.RateLimitError,
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # A port that is no number, or none of TCP, is told when it is read.
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(named) and url.isprintable() and " " not in url


def _refuse_others(answer: "httpx2.Response") -> None:
    """Raise NotMillraceError for a good answer that the API gives to no command.

    Files are of any kind; their objects were asked for before. JSON is an object that says what.
    """
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_of_any = answer.url.path.endswith("/content") or answer.status_code == HTTPStatus.NO_CONTENT
    if not answer.is_success or is_of_any:
        return
    if kind not in _OURS or (kind == _JSON and not _is_api_object(answer.read())):
        where = f"{answer.url.scheme}://{answer.url.netloc.decode()}"
        raise NotMillraceError(
            f"{where} is no Millrace API. --url or MILLRACE_URL says where it is."
        )


def _is_api_object(content: bytes) -> bool:
    try:
        found = json.loads(content)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("object"), str)
