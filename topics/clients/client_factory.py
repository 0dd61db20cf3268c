"""Building of librdkafka's clients: an option that one refuses is a wrong setting, not a defect."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from core.errors import SettingsError
from topics.settings import CLIENT_LOG, KafkaSettings

C = TypeVar("C")
Option = str | int | float | bool


def new_client(kind: Callable[..., C], options: Mapping[str, Option]) -> C:
    """Return a producer, consumer or admin client of `options`; it connects later.

    Raises SettingsError, which names the options at fault and no value: one is a password.
    """
    try:
        return kind(dict(options), logger=CLIENT_LOG)
    except KafkaException as refusal:
        error = refusal.args[0]
        if error.code() != KafkaError._INVALID_ARG:  # noqa: SLF001
            raise
        named = [name for name in options if name in error.str()]
        told = ", ".join(named) or "an option"
        settings = KafkaSettings.env_prefix
        raise SettingsError(f"{settings}…: the Kafka client refuses {told}") from None
