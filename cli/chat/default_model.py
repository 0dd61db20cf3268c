"""Chooses the chat model of a command without `--model`."""

from typing import TYPE_CHECKING

from cli.client import extension_fields
from cli.exits import NotFoundError

if TYPE_CHECKING:
    import openai

_CHAT = "/v1/chat/completions"


class NoChatModelError(NotFoundError):
    """No listed model serves chat; --model can name one that is not listed."""


def first_chat_model(client: "openai.OpenAI") -> str:
    """Return the first listed model that serves chat. Raises NoChatModelError."""
    for model in client.models.list():
        if _CHAT in extension_fields(model).get("endpoints", ()):
            return model.id
    raise NoChatModelError
