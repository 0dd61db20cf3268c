"""Connects operator commands to Postgres and Kafka, by variables or through a running stack."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import sqlalchemy as sa
import typer

from cli.exits import NotFoundError
from cli.stack.data_folder import is_locked, read_state
from cli.stack.processes.role_children import object_store_env
from registry.models import list_pools
from storage.objects.object_store import ObjectStore
from storage.objects.open_store import object_store_from_env
from storage.postgres import engines
from storage.postgres.settings import DatabaseSettings
from topics.settings import KafkaSettings

DATABASE_URL = f"{DatabaseSettings.env_prefix}URL"

DataOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder of a running `millrace up`, to use its services. By default "
        "MILLRACE_DATABASE_… and MILLRACE_KAFKA_… variables name them; all others of these apply "
        "with --data too.",
    ),
]


class NoStackError(NotFoundError):
    """No stack runs on this data folder."""


@contextmanager
def transaction(data: Path | None) -> Iterator[sa.Connection]:
    """Yield a connection whose transaction is committed at the end of the block.

    Raises SettingsError, NoStackError.
    """
    engine = engines.create_engine(database_settings(data), application_name="millrace-cli")
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def database_settings(data: Path | None) -> DatabaseSettings:
    """Return the settings for Postgres. Raises SettingsError, NoStackError."""
    return DatabaseSettings.from_env(_environment(data))


def kafka_settings(data: Path | None) -> KafkaSettings:
    """Return the settings for Kafka. Raises SettingsError, NoStackError."""
    return KafkaSettings.from_env(_environment(data))


def object_store(data: Path | None) -> ObjectStore:
    """Open the object store of the installation. Raises SettingsError, NoStackError."""
    env = _environment(data)
    if data is not None:
        env = {**env, **object_store_env(data, env)}
    return object_store_from_env(env)


def _environment(data: Path | None) -> Mapping[str, str]:
    """Return the variables, in which the services of the stack on `data` replace others."""
    if data is None:
        return os.environ
    state = read_state(data)
    if state is None or not is_locked(data):  # a killed stack leaves its state behind
        raise NoStackError(f"No stack runs on {data}.")
    return {
        **os.environ,
        DATABASE_URL: state.database_url,
        f"{KafkaSettings.env_prefix}BOOTSTRAP_SERVERS": state.kafka_bootstrap_servers,
        **state.kafka_credentials,
    }


def names_database(data: Path | None) -> bool:
    """Whether the variables or the data folder name a database."""
    return data is not None or bool(os.environ.get(DATABASE_URL))


def known_pools(data: Path | None) -> Sequence[str]:
    """Return the pools of all model versions, old ones too: jobs keep their version.

    Returns none when the settings name no database. Raises SettingsError, NoStackError.
    """
    if not names_database(data):
        return []
    with transaction(data) as connection:
        return list(list_pools(connection))
