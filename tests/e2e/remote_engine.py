"""The client half of `engine_server`: an engine whose work happens in the child process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
import psutil

from gpu_consumers.engines.engine import Answer, Finished

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 20.0


class RemoteEngine:
    """Forwards `execute`; cancelling it closes the connection, which cancels it over there."""

    def __init__(self, socket_path: Path, concurrency: int) -> None:
        self._socket_path = socket_path
        self._concurrency = concurrency

    @property
    def concurrency(self) -> int:
        return self._concurrency

    async def start(self) -> None:
        """The child has started already."""

    async def stop(self) -> None:
        """The child is stopped by `running_engine`."""

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        connector = aiohttp.UnixConnector(str(self._socket_path))
        async with (
            aiohttp.ClientSession(connector=connector, read_bufsize=2**24) as session,
            session.post(
                "http://engine/", data=msgspec.msgpack.encode((endpoint, bodies))
            ) as lines,
        ):
            async for line in lines.content:
                finished(*msgspec.json.decode(line, type=tuple[int, Answer]))


@contextmanager
def running_engine(folder: Path, env: Mapping[str, str]) -> Iterator[RemoteEngine]:
    """Start the child and wait for its socket; leave none of its processes behind."""
    socket_path, log_path = folder / "engine.sock", folder / "engine.log"
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.engine_server", str(socket_path)],
            env=os.environ | {f"MILLRACE_ENGINE_{name}": value for name, value in env.items()},
            cwd=Path(__file__).parents[2],
            stdout=log,
            stderr=log,
        )
    family = [psutil.Process(child.pid)]
    try:
        _wait_for(socket_path, child, log_path)
        family += family[0].children(recursive=True)
        yield RemoteEngine(socket_path, concurrency=int(env["CONCURRENCY"]))
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, [process.pid for process in alive]
    assert child.returncode == 0, log_path.read_text()[-4000:]


def _wait_for(socket_path: Path, child: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not socket_path.exists():
        assert child.poll() is None, log_path.read_text()[-4000:]
        assert time.monotonic() < deadline_s, "the engine did not start"
        time.sleep(0.1)
