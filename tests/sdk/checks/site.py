"""What a check talks to. It runs under each release of the client: only that and Python is here."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import openai

T = TypeVar("T")

RATE_TOKENS = 1_000_000
"""That a tenant may ask for in a minute."""


@dataclass(frozen=True)
class Site:
    """A running stack, as a user knows it."""

    url: str
    key: str
    poor_key: str
    """Of a tenant that may keep no file larger than 10 bytes."""
    chat_model: str
    embedding_model: str
    other_model: str
    """Also served; its name holds a slash."""
    busy_key: str = ""
    """Of a tenant that others leave alone, so that it can use up its rate."""
    idle_model: str = ""
    """Known, and served by no replica."""
    webhook: dict[str, str] = field(default_factory=dict)
    """A signed message: its headers, `body`, and both secrets that signed it."""

    @property
    def client(self) -> openai.OpenAI:
        """A client as a user builds it, except that failures show at once."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    @property
    def async_client(self) -> openai.AsyncOpenAI:
        """The same for coroutines."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    @staticmethod
    def read() -> "Site":
        """Return the site that the caller wrote to our standard input."""
        return Site(**json.load(sys.stdin))


def equal(found: object, wanted: object) -> None:
    """Fail with both sides: plain assertions show neither."""
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def refused(
    kind: type[openai.APIStatusError], call: Callable[..., object], **arguments: Any
) -> Any:
    """Return the error, of exactly `kind`, that `call` raises."""
    try:
        answer = call(**arguments)
    except openai.APIStatusError as error:
        equal(type(error), kind)
        return error
    raise AssertionError(f"not refused: {answer!r}")


def poll(look: Callable[[], T], until: Callable[[T], bool], timeout_s: float = 20.0) -> T:
    """Return what `look` finds, once `until` holds of it."""
    deadline_s = time.monotonic() + timeout_s
    while not until(found := look()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s, last seen {found!r}")
        time.sleep(0.05)
    return found
