"""Runs of `benchmarks.children.online_load`."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from statistics import quantiles

import msgspec

from benchmarks.children.line_child import LineChild
from benchmarks.children.online_load import LoadResult, LoadTask
from benchmarks.runs import Setup, VoidRunError
from benchmarks.statistics.cpu import cpu_by_role, cpu_used

READY_S_MAX = 60.0
DONE_S_MAX = 300.0
WARM_CALLS, QUICK_WARM_CALLS = 6_000, 60
WARM_CLIENTS = 8
PROMPT = "Say in one sentence what a durable log is good for."


def chat_body(model: str, *, stream: bool, max_tokens: int = 16) -> str:
    """Return a short chat request."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": max_tokens,
    }
    if stream:
        body["stream"] = True
    return json.dumps(body)


def warm_up(setup: Setup, url: str, key: str, path: str, body: str) -> None:
    """Call a stack until its broker has warmed up. Raises VoidRunError.

    The broker's JIT compiles hot code: its first five thousand calls take half as long again as
    later ones.
    """
    calls = QUICK_WARM_CALLS if setup.quick else WARM_CALLS
    task = LoadTask(url=url, key=key, path=path, body=body, clients=WARM_CLIENTS, calls=calls)
    run_load(task, setup.work, "warm-up")


def run_load(task: LoadTask, folder: Path, name: str = "clients") -> LoadResult:
    """Run the clients of `task` in a child process.

    Raises VoidRunError on any refusal and any broken stream.
    """
    with closing(LoadProcess(task, folder, name)) as process:
        process.wait_until_ready()
        return process.run()


def run_measured(
    task: LoadTask, folder: Path, roles: Mapping[str, int]
) -> tuple[LoadResult, dict[str, float]]:
    """Run a load and return its result and the CPU seconds of each role meanwhile."""
    before = cpu_by_role(roles)
    found = run_load(task, folder)
    return found, cpu_used(before, cpu_by_role(roles))


class LoadProcess:
    """A child process whose clients have connected and wait."""

    def __init__(self, task: LoadTask, folder: Path, name: str) -> None:
        """Start the process."""
        argument = msgspec.json.encode(task).decode()
        self._child = LineChild(
            name, "benchmarks.children.online_load", [argument], folder / "logs"
        )

    def wait_until_ready(self) -> None:
        """Return once every client has a response. Raises VoidRunError."""
        self._child.expect("ready", READY_S_MAX)

    def run(self) -> LoadResult:
        """Run the calls and return the result. Raises VoidRunError."""
        self._child.send_line("go")
        found = msgspec.json.decode(self._child.expect("result", DONE_S_MAX), type=LoadResult)
        if found.refused:
            raise VoidRunError(f"{found.refused} calls were refused")
        if found.broken:
            raise VoidRunError(f"{found.broken} streams are incomplete or have an error")
        return found

    def close(self) -> None:
        """Stop the process."""
        self._child.close()


def percentile(samples: list[float], percent: int) -> float:
    """Return a percentile between 1 and 99 of at least two samples."""
    return quantiles(samples, n=100, method="inclusive")[percent - 1]
