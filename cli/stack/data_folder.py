"""The data folder of a stack, its lock, and the cache folder for downloads."""

import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from cli.stack.errors import DataFolderInUseError, StackError
from core.errors import SettingsError

_LOG = logging.getLogger(__name__)

_LOCK: Final = "stack.lock"
_LOCK_ATTEMPTS: Final = 5
_LOCK_PAUSE_S: Final = 0.05
"""`is_locked` holds the lock for microseconds, so a few attempts suffice."""

_PRIVATE: Final = ("downloads", "kafka", "logs", "objects", "postgres", "weights")
"""Folders in a data folder with mode 0700."""

_SECRET_BYTES: Final = 32

OPERATOR_KEY_FILE: Final = "operator-key"
"""File with an operator key of the installation, mode 0600."""

SIGNING_KEY_FILE: Final = "model-signing-key"
"""File with the private key that signs the models of the stack, mode 0600."""

TRUSTED_KEYS_FILE: Final = "trusted-model-keys.pem"
"""File with the public keys whose signatures the replicas of the stack accept."""

PUSHED_MODELS_FILE: Final = "models.json"
"""File with the versions of the models that were pushed."""

_NAMES: Final = {
    *_PRIVATE,
    "key",
    SIGNING_KEY_FILE,
    TRUSTED_KEYS_FILE,
    PUSHED_MODELS_FILE,
    OPERATOR_KEY_FILE,
    "lost+found",
    "ports.json",
    "scaling.sock",
    "stack.json",
    "webhook-key",
}
"""Allowed names in a data folder without a lock file: a copied or manually prepared folder."""


def cache_dir(env: Mapping[str, str]) -> Path:
    """Return `MILLRACE_CACHE`, or `millrace` in the user's cache folder."""
    if named := env.get("MILLRACE_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"


@contextmanager
def lock_data_folder(data_dir: Path) -> Iterator[None]:
    """Lock `data_dir`, created if absent, for one stack.

    The kernel releases the lock when the process ends. Raises DataFolderInUseError, and
    SettingsError for a folder with files that are not of a stack.
    """
    _require_stack_folder(data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, data_dir)
        for name in _PRIVATE:
            _make_private(data_dir / name)
        yield
    finally:
        os.close(descriptor)


def is_locked(data_dir: Path) -> bool:
    """Whether a stack runs on `data_dir`. Files that a killed stack left do not count."""
    try:
        descriptor = os.open(data_dir / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; waits while another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _LOG.warning("waiting for another process", extra={"lock": str(path)})
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_stack_folder(data_dir: Path) -> None:
    """Refuse an unrelated folder: a stack would add files to it and delete its `tmp`."""
    if not data_dir.is_dir() or (data_dir / _LOCK).exists():
        return
    if unknown := sorted({entry.name for entry in data_dir.iterdir()} - _NAMES):
        raise SettingsError(
            f"--data {data_dir} holds {unknown[0]}, which is not of `millrace up`: "
            "give an empty folder, or one of an earlier `millrace up`"
        )


def _make_private(folder: Path) -> None:
    """Create a folder with mode 0700; restrict an existing one that the user owns."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if is_owned_folder(folder) and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def _lock(descriptor: int, data_dir: Path) -> None:
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return
    raise DataFolderInUseError(
        f"Another stack runs on {data_dir}: stop it, or give another folder by --data."
    )


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at `path` atomically, with mode 0600; durable on return."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # makes the rename durable
    finally:
        os.close(folder)


def saved_secret(path: Path) -> str:
    """Return the random secret in `path`, created with mode 0600 if absent.

    It consists of letters, digits, `-` and `_`, so it needs no escape in URLs, SQL and properties.
    Raises StackError for a file with anything else.
    """
    if not path.exists():
        write_private(path, secrets.token_urlsafe(_SECRET_BYTES).encode())
    secret = path.read_text().strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,}", secret):
        raise StackError(f"{path} holds no secret of Millrace: remove it, and start again.")
    path.chmod(0o600)
    return secret


def is_owned_folder(folder: Path) -> bool:
    """Whether this is a folder, not a link to one, that the effective user owns."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


_NAME = "stack.json"


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a stack's services, with the secrets that they ask for."""

    url: str  # of the API, without /v1
    kafka_bootstrap_servers: str
    database_url: str
    pools: list[str]
    metrics_ports: dict[str, int]  # role or replica name to its port on 127.0.0.1
    kafka_credentials: dict[str, str] = {}  # variables; empty for an external broker
    scaling_socket: str = ""  # on which the stack takes orders; empty: it does not scale
    replica_ports: dict[int, int] = {}  # metrics port of `replica-POOL-NUMBER` by number


def write_state(data: Path, state: StackState) -> None:
    """Replace the state in `data` atomically."""
    write_private(data / _NAME, msgspec.json.format(msgspec.json.encode(state)))


def read_state(data: Path) -> StackState | None:
    """Return the state in `data`, or None when the file does not exist.

    A killed stack leaves its state behind. Raises SettingsError for a file that this release
    cannot read.
    """
    try:
        return msgspec.json.decode((data / _NAME).read_bytes(), type=StackState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise SettingsError(f"{data / _NAME} was not written by this release.") from None


def remove_state(data: Path) -> None:
    """Remove the state in `data`, if any."""
    (data / _NAME).unlink(missing_ok=True)
