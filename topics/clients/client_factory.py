"""Builds librdkafka clients and reports a rejected option as invalid settings."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from core.errors import SettingsError
from topics.settings import CLIENT_LOG, KafkaSettings

C = TypeVar("C")
Option = str | int | float | bool | Callable[..., Any]


def new_client(kind: Callable[..., C], options: Mapping[str, Option]) -> C:
    """Return a producer, consumer or admin client with `options`; it connects later.

    Raises SettingsError with the names of the rejected options, never a value: one is a password.
    """
    try:
        return kind(dict(options), logger=CLIENT_LOG)
    except KafkaException as rejection:
        error = rejection.args[0]
        if error.code() != KafkaError._INVALID_ARG:  # noqa: SLF001
            raise
        rejected = ", ".join(name for name in options if name in error.str()) or "an option"
        settings = KafkaSettings.env_prefix
        raise SettingsError(f"{settings}…: the Kafka client refuses {rejected}") from None
