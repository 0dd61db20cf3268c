"""The broker's jars: downloaded once by `jgo`, checked against `kafka_jars.lock`, kept in a cache.

`python -m cli.stack.jars lock` resolves anew and writes the lock.
"""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING

from cli.stack.errors import JarMismatchError, JarUnavailableError
from cli.stack.state.data_folder import file_lock

if TYPE_CHECKING:
    from jgo.maven import MavenContext

LOCK_FILE = Path(__file__).with_name("kafka_jars.lock")

ENDPOINT = "org.apache.kafka:kafka_2.13:4.3.1+org.apache.logging.log4j:log4j-slf4j-impl:2.25.4!"
"""The broker and its logger. Without the `!` the logger's versions would replace the broker's."""

DOWNLOADS_AT_ONCE = 8
TRIES_MAX = 3
_PARTIAL = "kafka-jars-partial-"


def cached_jars(cache: Path) -> Path:
    """Return the folder that holds exactly the jars of the lock; download them the first time.

    A download that is cut short leaves no half-filled folder behind: jars are fetched into a
    private folder, verified, and renamed in one step. Raises JarUnavailableError and
    JarMismatchError.
    """
    lock_text = LOCK_FILE.read_text()
    digest = hashlib.sha256(lock_text.encode()).hexdigest()[:12]
    wanted = cache / f"kafka-jars-{digest}"
    if wanted.is_dir():
        return wanted
    cache.mkdir(parents=True, exist_ok=True)
    with file_lock(cache / "kafka-jars.lock"):
        if not wanted.is_dir():
            _download(read_lock(lock_text), wanted)
    return wanted


def read_lock(text: str) -> dict[str, str]:
    """Map each coordinate `group:artifact:version` of a lock to the SHA-256 of its jar."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split(" ", 1) for line in lines)


def _download(lock: Mapping[str, str], wanted: Path) -> None:
    for left_over in wanted.parent.glob(f"{_PARTIAL}*"):  # of a download that was killed
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(
        dir=wanted.parent,
        prefix=_PARTIAL,
        ignore_cleanup_errors=True,  # downloads that are cut short may still write
    ) as partial:
        context = _maven(Path(partial) / "maven")
        ready = Path(partial) / "ready"
        ready.mkdir()

        def fetch(coordinate: str) -> None:
            jar = _fetch(context, coordinate)
            if _sha256(jar) != lock[coordinate]:
                raise JarMismatchError(f"{coordinate} is not the jar that the lock names.")
            jar.rename(ready / jar.name)

        with ThreadPool(DOWNLOADS_AT_ONCE) as pool:  # its end waits for no download
            for _ in pool.imap_unordered(fetch, lock):
                pass
        ready.rename(wanted)


def _fetch(context: "MavenContext", coordinate: str) -> Path:
    group, artifact, version = coordinate.split(":")
    jar = context.project(group, artifact).at_version(version).artifact()
    failure: Exception | None = None
    for _ in range(TRIES_MAX):
        try:
            return jar.resolve()
        except (OSError, RuntimeError) as error:  # the network; an answer other than 200
            failure = error
            if jar.cached_path is not None:
                jar.cached_path.unlink(missing_ok=True)
    raise JarUnavailableError(f"{coordinate} could not be downloaded.") from failure


def write_lock() -> None:
    """Resolve `ENDPOINT` with everything it needs at run time, and write `LOCK_FILE`."""
    from jgo.parse import Endpoint

    with tempfile.TemporaryDirectory() as folder:
        context = _maven(Path(folder))
        named = [
            context.create_dependency(replace(coordinate, scope="compile"))
            for coordinate in Endpoint.parse(ENDPOINT).coordinates
        ]
        roots, others = context.resolver.resolve(named)
        needed = [*roots, *(d for d in others if d.scope in {"compile", "runtime"})]
        lines = sorted(
            f"{a.groupId}:{a.artifactId}:{a.version} {_sha256(a.resolve())}"
            for a in (dependency.artifact for dependency in needed)
        )
    head = "# Written by `make lock`: each jar of the broker and its SHA-256."
    LOCK_FILE.write_text("\n".join([head, *lines, ""]))


def _maven(repository: Path) -> "MavenContext":
    """A Maven context of our own: the user's repository may hold a jar that was cut short."""
    # Imported here: jgo takes 0.3 s to import and is needed once a machine.
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext, PythonResolver

    return MavenContext(
        resolver=PythonResolver(),
        repo_cache=repository,
        remote_repos={"central": MAVEN_CENTRAL_URL},
        timeout=60,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lock"]:
            write_lock()
        case _:
            sys.exit("usage: python -m cli.stack.jars lock")
