"""The connection of user commands: the official client, pointed at this installation."""

import re
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from cli.exits import KeyMissingError

if TYPE_CHECKING:
    import openai

DEFAULT_URL = "http://127.0.0.1:8080"

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


def connect(url: str, key: str) -> "openai.OpenAI":
    """Return a client; nothing is sent yet. Raises KeyMissingError, typer.BadParameter."""
    if not key:
        raise KeyMissingError

    base_url = api_base(url)

    import openai  # takes a second, which commands of operators do without

    return openai.OpenAI(api_key=key, base_url=base_url)


def api_base(url: str) -> str:
    """Return the base URL that clients of the API take; `/v1` may be there already.

    Raises typer.BadParameter.
    """
    if not re.match(r"https?://[^/]", url):
        raise typer.BadParameter(f"{url!r} is none: give http://HOST:PORT", param_hint="--url")
    return url.rstrip("/").removesuffix("/v1") + "/v1"
