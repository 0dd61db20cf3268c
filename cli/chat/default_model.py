"""Which model a user means who names none."""

from typing import TYPE_CHECKING

from cli.exits import NotFoundError

if TYPE_CHECKING:
    import openai

_CHAT = "/v1/chat/completions"


class NoChatModelError(NotFoundError):
    """No model of this installation chats; --model names one that is not listed."""


def first_chat_model(client: "openai.OpenAI") -> str:
    """Return the first model that says that it chats. Raises NoChatModelError."""
    for model in client.models.list():
        own = (model.model_extra or {}).get("millrace") or {}
        if _CHAT in own.get("endpoints", ()):
            return model.id
    raise NoChatModelError
