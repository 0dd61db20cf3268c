"""The site that a check uses. It runs under each release, with only the client and Python."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import openai
from openai.types.chat import ChatCompletionUserMessageParam

from tests.support.until import pause_after

T = TypeVar("T")

MESSAGES: list[ChatCompletionUserMessageParam] = [
    {"role": "user", "content": "Why is the sky blue?"}
]

RATE_TOKENS = 1_000_000
"""A tenant's token rate a minute."""


@dataclass(frozen=True)
class Site:
    """A running stack, as a user sees it."""

    url: str
    key: str
    poor_key: str
    """Of a tenant that may store no file larger than 10 bytes."""
    chat_model: str
    embedding_model: str
    other_model: str
    """Served as well; its name has a slash."""
    busy_key: str = ""
    """Of a tenant that no other check uses, whose rate a check exhausts."""
    idle_model: str = ""
    """Registered, but served by no replica."""
    webhook: dict[str, str] = field(default_factory=dict)
    """A signed message: its headers, `body`, and both secrets that signed it."""

    @property
    def client(self) -> openai.OpenAI:
        """A client as a user creates it, but without retries."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def chat(self, **options: Any) -> Any:
        """Ask the chat model `MESSAGES` through a new client."""
        create: Any = self.client.chat.completions.create
        return create(**{"model": self.chat_model, "messages": MESSAGES, **options})

    def raw_chat(self, max_retries: int = 0, **options: Any) -> Any:
        """Ask as `chat` does and return the raw response."""
        client = self.client.with_options(max_retries=max_retries)
        create: Any = client.chat.completions.with_raw_response.create
        return create(**{"model": self.chat_model, "messages": MESSAGES, **options})

    @property
    def async_client(self) -> openai.AsyncOpenAI:
        """The same for coroutines."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    @staticmethod
    def read() -> "Site":
        """Return the site from standard input."""
        return Site(**json.load(sys.stdin))


def equal(found: object, expected: object) -> None:
    """Fail with both values, which plain assertions do not show here."""
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


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


def poll(read: Callable[[], T], until: Callable[[T], bool], timeout_s: float = 20.0) -> T:
    """Return the result of `read` once `until` is true of it."""
    started_s = time.monotonic()
    while not until(found := read()):
        waited_s = time.monotonic() - started_s
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:g} s, last seen {found!r}")
        time.sleep(pause_after(waited_s))
    return found
