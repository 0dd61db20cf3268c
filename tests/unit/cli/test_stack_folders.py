"""Goal: ports, folders, broker settings and the state of a stack follow their rules."""

import fcntl
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli.admin.operator_connections import NoStackError, database_settings, kafka_settings
from cli.stack.data_folder import (
    StackState,
    cache_dir,
    is_locked,
    lock_data_folder,
    read_state,
    remove_state,
    saved_secret,
    write_private,
    write_state,
)
from cli.stack.errors import DataFolderInUseError, StackError
from cli.stack.jars import LOCK_FILE, read_lock
from cli.stack.processes.ports import HOST, reserve_ports
from cli.stack.services.embedded_kafka import server_properties
from cli.stack.services.embedded_postgres import _SOCKET_NAME, SOCKET_PATH_BYTES_MAX, socket_dir
from core.errors import SettingsError

NAMES = ("broker", "controller")


def test_lock_file_has_one_checksum_for_each_jar() -> None:
    lock = read_lock(LOCK_FILE.read_text())

    assert "org.apache.kafka:kafka_2.13:4.3.1" in lock
    assert all(len(digest) == 64 for digest in lock.values())
    artifacts = [coordinate.split(":")[1] for coordinate in lock]
    assert len(artifacts) == len(set(artifacts)), "two versions of one jar on one class path"


def test_saved_ports_are_reused_while_free(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    first = reserve_ports(path, NAMES, random.Random(1))

    assert reserve_ports(path, NAMES, random.Random(2)) == first
    assert len(set(first.values())) == 2
    with socket.create_server((HOST, first["broker"])):
        second = reserve_ports(path, NAMES, random.Random(1))
    assert second["broker"] != first["broker"]
    assert json.loads(path.read_text()) == second


def test_reserved_ports_are_not_chosen_by_another_process(tmp_path: Path) -> None:
    own = reserve_ports(tmp_path / "own.json", NAMES, random.Random(5))
    program = (
        "import random, sys; from pathlib import Path; "
        "from cli.stack.processes.ports import reserve_ports; "
        "reserve_ports(Path(sys.argv[1]), ('broker', 'controller'), random.Random(5))"
    )
    path = tmp_path / "theirs.json"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=30)

    assert not {*own.values()} & {*json.loads(path.read_text()).values()}  # no server listens yet


@pytest.mark.parametrize("temporary", ["/tmp", "/" + "t" * 100, "/t,u"], ids=str)
def test_socket_folder_is_short_unique_and_without_comma(
    temporary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert socket_dir(Path("/data/postgres")) == Path("/data/postgres/socket")
    monkeypatch.setattr("tempfile.tempdir", temporary)
    found = [socket_dir(Path(home)) for home in ("/" + "d" * 120, "/" + "e" * 120, "/a,b")]

    assert len(set(found)) == 3
    assert max(len(str(folder / _SOCKET_NAME)) for folder in found) <= SOCKET_PATH_BYTES_MAX
    assert not any("," in str(folder) for folder in found)


def test_offsets_outlive_records_and_an_index_covers_a_segment() -> None:
    lines = server_properties(Path("/log"), 1, 2, session_ms=6000).splitlines()
    properties = dict(line.split("=", 1) for line in lines)

    assert int(properties["offsets.retention.minutes"]) > 37 * 24 * 60
    assert int(properties["log.retention.hours"]) > 37 * 24
    heartbeats = int(properties["broker.session.timeout.ms"]) / int(
        properties["broker.heartbeat.interval.ms"]
    )
    assert heartbeats >= 3, "the broker would be fenced"
    entries = int(properties["log.segment.bytes"]) // 4096  # Kafka's log.index.interval.bytes
    time_index_entry_bytes = 12
    assert entries * time_index_entry_bytes < int(properties["log.index.size.max.bytes"])


@pytest.mark.parametrize(("session_ms", "heartbeat_ms"), [(1000, 100), (2000, 166), (6000, 200)])
def test_a_member_that_joins_others_waits_for_short_heartbeats(
    session_ms: int, heartbeat_ms: int
) -> None:
    lines = server_properties(Path("/log"), 1, 2, session_ms=session_ms).splitlines()
    assert f"group.consumer.heartbeat.interval.ms={heartbeat_ms}" in lines


def test_data_folder_is_locked_for_one_stack(tmp_path: Path) -> None:
    with (
        lock_data_folder(tmp_path),
        pytest.raises(DataFolderInUseError),
        lock_data_folder(tmp_path),
    ):
        pass
    with lock_data_folder(tmp_path):
        pass


def test_is_locked_does_not_block_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_locked(tmp_path)
    with lock_data_folder(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)

    reader = os.open(tmp_path / "stack.lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda _: os.close(reader))
    with lock_data_folder(tmp_path):
        pass


def test_cache_folder_follows_variables() -> None:
    assert cache_dir({"MILLRACE_CACHE": "/c"}) == Path("/c")
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/millrace")
    assert cache_dir({}) == Path.home() / ".cache" / "millrace"


@pytest.mark.parametrize("name", ["notes.txt", "tmp", "src"])
def test_unrelated_folder_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)

    with pytest.raises(SettingsError, match=f"holds {name}.*give an empty folder"):
        lock_data_folder(tmp_path).__enter__()

    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_data_folder_with_a_lock_file_and_a_copied_one_are_accepted(tmp_path: Path) -> None:
    used, copied = tmp_path / "used", tmp_path / "copied"
    with lock_data_folder(used):
        (used / "tmp").mkdir()
        (used / "cluster.tar").touch()
    copied.mkdir()
    (copied / "objects").symlink_to(tmp_path / "not-there-yet")
    (copied / "webhook-key").touch()
    with lock_data_folder(used), lock_data_folder(copied):
        pass


def test_subfolders_are_private_and_the_data_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with lock_data_folder(tmp_path), lock_data_folder(tmp_path / "objects" / "made"):
        modes = {f.name: f.stat().st_mode & 0o777 for f in tmp_path.iterdir() if f.is_dir()}
        assert modes == dict.fromkeys(
            ("downloads", "kafka", "logs", "objects", "postgres", "weights"), 0o700
        )
        assert tmp_path.stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "objects" / "made").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"broker": "x", "controller": 1}', '{"broker": 0, "controller": 99999}'],
)
def test_damaged_port_file_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(text)

    chosen = reserve_ports(path, NAMES, random.Random(3))

    assert set(chosen) == set(NAMES)
    assert json.loads(path.read_text()) == chosen


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


def test_operator_commands_authenticate_as_the_running_stack_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "elsewhere:9092")
    credentials = {
        "MILLRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "MILLRACE_KAFKA_SASL_MECHANISM": "PLAIN",
        "MILLRACE_KAFKA_SASL_USERNAME": "millrace",
        "MILLRACE_KAFKA_SASL_PASSWORD": "of-this-folder",
    }
    with lock_data_folder(tmp_path):
        write_state(tmp_path, msgspec.structs.replace(STATE, kafka_credentials=credentials))
        kafka = kafka_settings(tmp_path)

    assert kafka.sasl_password is not None
    assert kafka.sasl_password.get_secret_value() == "of-this-folder"


def test_secret_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    assert saved_secret(first) == saved_secret(first) != saved_secret(second)

    first.chmod(0o644)
    saved_secret(first)
    assert first.stat().st_mode & 0o777 == 0o600
    first.write_text('short" or with syntax')
    with pytest.raises(StackError, match="remove it"):
        saved_secret(first)


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
