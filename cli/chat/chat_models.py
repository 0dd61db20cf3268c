"""Chooses the model of a conversation without `--model`."""

from typing import TYPE_CHECKING

from cli.exits import NotFoundError

if TYPE_CHECKING:
    import openai

_CHAT = "/v1/chat/completions"


class NoChatModelError(NotFoundError):
    """This installation lists no chat model. Name one by --model."""


def chat_model(client: "openai.OpenAI") -> str:
    """Return the first listed model with the chat endpoint. Raises NoChatModelError."""
    for model in client.models.list():
        own = (model.model_extra or {}).get("millrace") or {}
        if _CHAT in own.get("endpoints", ()):
            return model.id
    raise NoChatModelError
