"""Goal: ports, socket folders, broker settings and data folders of a stack follow their rules."""

import fcntl
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.stack.data_folder import cache_dir, is_locked, lock_data_folder
from cli.stack.errors import DataFolderInUseError
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


def test_ports_change_when_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    first = reserve_ports(path, NAMES, random.Random(1))

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


def test_socket_folder_is_in_a_short_data_folder() -> None:
    assert socket_dir(Path("/data/postgres")) == Path("/data/postgres/socket")


def test_socket_folder_of_a_long_path_is_short_and_unique() -> None:
    deep, other = Path("/" + "d" * 120), Path("/" + "e" * 120)

    assert len(str(socket_dir(deep) / _SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX
    assert socket_dir(deep) == socket_dir(deep)
    assert socket_dir(deep) != socket_dir(other)


def test_socket_folder_avoids_a_long_temporary_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/" + "t" * 100)

    assert len(str(socket_dir(Path("/" + "d" * 120)) / _SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX


def test_socket_folder_has_no_comma(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "," not in str(socket_dir(Path("/a,b")))
    monkeypatch.setattr("tempfile.tempdir", "/t,u")
    assert "," not in str(socket_dir(Path("/a,b")))


def test_offset_retention_exceeds_record_retention() -> None:
    lines = server_properties(Path("/log"), 1, 2, session_ms=6000).splitlines()
    properties = dict(line.split("=", 1) for line in lines)

    assert int(properties["offsets.retention.minutes"]) > 37 * 24 * 60
    assert int(properties["log.retention.hours"]) > 37 * 24
    heartbeats = int(properties["broker.session.timeout.ms"]) / int(
        properties["broker.heartbeat.interval.ms"]
    )
    assert heartbeats >= 3, "the broker would be fenced"


def test_index_size_covers_a_segment() -> None:
    lines = server_properties(Path("/log"), 1, 2, session_ms=6000).splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    entries = int(properties["log.segment.bytes"]) // 4096  # Kafka's log.index.interval.bytes
    time_index_entry_bytes = 12

    assert entries * time_index_entry_bytes < int(properties["log.index.size.max.bytes"])


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


def test_data_folder_with_a_lock_file_is_reused(tmp_path: Path) -> None:
    with lock_data_folder(tmp_path):
        (tmp_path / "tmp").mkdir()
        (tmp_path / "cluster.tar").touch()
    with lock_data_folder(tmp_path):
        pass


def test_copied_data_folder_without_lock_file_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "objects").symlink_to(tmp_path / "not-there-yet")
    (tmp_path / "webhook-key").touch()
    with lock_data_folder(tmp_path):
        pass


def test_subfolders_are_private_and_the_data_folder_keeps_its_mode(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    with lock_data_folder(tmp_path), lock_data_folder(tmp_path / "objects" / "made"):
        modes = {f.name: f.stat().st_mode & 0o777 for f in tmp_path.iterdir() if f.is_dir()}
        assert modes == dict.fromkeys(("kafka", "logs", "objects", "postgres"), 0o700)
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
