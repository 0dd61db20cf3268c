"""Goal: the state of a running stack is read back, by its owner only."""

from pathlib import Path

import pytest

from cli.admin.operator_connections import NoStackError, database_settings, kafka_settings
from cli.stack.data_folder import (
    StackState,
    lock_data_folder,
    read_state,
    remove_state,
    write_private,
    write_state,
)
from core.errors import SettingsError

STATE = StackState(
    url="http://127.0.0.1:8080",
    kafka_bootstrap_servers="127.0.0.1:9092",
    database_url="postgresql+psycopg://postgres@/millrace?host=/socket",
    pools=["minilm-1"],
    metrics_ports={"intake": 9001},
)


def test_state_is_read_back_until_it_is_removed(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    write_state(tmp_path, STATE)

    assert read_state(tmp_path) == STATE
    assert (tmp_path / "stack.json").stat().st_mode & 0o777 == 0o600
    remove_state(tmp_path)
    remove_state(tmp_path)
    assert read_state(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": 1}'])
def test_unreadable_state_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "stack.json").write_text(content)

    with pytest.raises(SettingsError):
        read_state(tmp_path)


def test_services_of_a_running_stack_and_other_variables_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "elsewhere:9092")
    monkeypatch.setenv("MILLRACE_KAFKA_TOPIC_PREFIX", "zz.")
    monkeypatch.setenv("MILLRACE_DATABASE_POOL_SIZE", "3")

    with lock_data_folder(tmp_path):
        write_state(tmp_path, STATE)
        kafka, database = kafka_settings(tmp_path), database_settings(tmp_path)

    assert (kafka.bootstrap_servers, kafka.topic_prefix) == (STATE.kafka_bootstrap_servers, "zz.")
    assert database.url.get_secret_value() == STATE.database_url
    assert database.pool_size == 3


@pytest.mark.parametrize("is_killed", [False, True], ids=["no stack", "killed"])
def test_folder_without_a_running_stack_is_refused(tmp_path: Path, is_killed: bool) -> None:
    if is_killed:
        with lock_data_folder(tmp_path):
            write_state(tmp_path, STATE)

    for settings in (database_settings, kafka_settings):
        with pytest.raises(NoStackError, match=f"No stack runs on {tmp_path}"):
            settings(tmp_path)


def test_settings_come_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATABASE_URL", STATE.database_url)
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "broker:9092")

    assert database_settings(None).url.get_secret_value() == STATE.database_url
    assert kafka_settings(None).bootstrap_servers == "broker:9092"


def test_private_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "key"
    (tmp_path / ".key.partial").write_text("of a writer that was killed")
    write_private(path, b"a longer old one")
    write_private(path, b"new")

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]
