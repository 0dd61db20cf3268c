"""Downloads Kafka's jars with `jgo`, verifies them against `kafka_jars.lock` and caches them.

`python -m cli.stack.jars lock` resolves the dependencies again and writes the lock file.
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

from cli.stack.data_folder import file_lock
from cli.stack.errors import JarMismatchError, JarUnavailableError

if TYPE_CHECKING:
    from jgo.maven import MavenContext

LOCK_FILE = Path(__file__).with_name("kafka_jars.lock")

ENDPOINT = "org.apache.kafka:kafka_2.13:4.3.1+org.apache.logging.log4j:log4j-slf4j-impl:2.25.4!"
"""The broker and its logger. `!` keeps the broker's dependency versions over the logger's."""

DOWNLOADS_AT_ONCE = 8
TRIES_MAX = 3
_PARTIAL = "kafka-jars-partial-"


def cached_jars(cache: Path) -> Path:
    """Return the folder with exactly the jars of the lock file; download them if absent.

    The folder is never incomplete: jars are downloaded to a temporary folder, which is renamed
    after verification. Raises JarUnavailableError, JarMismatchError.
    """
    lock_text = LOCK_FILE.read_text()
    digest = hashlib.sha256(lock_text.encode()).hexdigest()[:12]
    folder = cache / f"kafka-jars-{digest}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with file_lock(cache / "kafka-jars.lock"):
        if not folder.is_dir():
            _download(read_lock(lock_text), folder)
    return folder


def read_lock(text: str) -> dict[str, str]:
    """Return the SHA-256 of each jar by its coordinate `group:artifact:version`."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split(" ", 1) for line in lines)


def _download(lock: Mapping[str, str], folder: Path) -> None:
    for stale in folder.parent.glob(f"{_PARTIAL}*"):  # left by a killed download
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(
        dir=folder.parent,
        prefix=_PARTIAL,
        ignore_cleanup_errors=True,  # cancelled downloads may still write
    ) as partial:
        context = _maven(Path(partial) / "maven")
        ready = Path(partial) / "ready"
        ready.mkdir()

        def fetch(coordinate: str) -> None:
            jar = _fetch(context, coordinate)
            if _sha256(jar) != lock[coordinate]:
                raise JarMismatchError(f"{coordinate} does not have the checksum in the lock file.")
            jar.rename(ready / jar.name)

        with ThreadPool(DOWNLOADS_AT_ONCE) as pool:  # leaving the block does not wait for downloads
            for _ in pool.imap_unordered(fetch, lock):
                pass
        ready.rename(folder)


def _fetch(context: "MavenContext", coordinate: str) -> Path:
    group, artifact, version = coordinate.split(":")
    jar = context.project(group, artifact).at_version(version).artifact()
    failure: Exception | None = None
    for _ in range(TRIES_MAX):
        try:
            return jar.resolve()
        except (OSError, RuntimeError) as error:  # network errors; responses other than 200
            failure = error
            if jar.cached_path is not None:
                jar.cached_path.unlink(missing_ok=True)
    raise JarUnavailableError(f"{coordinate} could not be downloaded.") from failure


def write_lock() -> None:
    """Resolve `ENDPOINT` and its runtime dependencies and write `LOCK_FILE`."""
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
    """Return a private Maven context: the user's repository may hold truncated jars."""
    # Imported here: jgo takes 0.3 s to import and is needed once for each machine.
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
