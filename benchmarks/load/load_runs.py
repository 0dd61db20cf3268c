"""Runs of `benchmarks.children.online_load`, and what they say."""

import json
from pathlib import Path
from statistics import quantiles

import msgspec

from benchmarks.children.line_child import LineChild
from benchmarks.children.online_load import Result, Task
from benchmarks.runs import Setup, VoidRunError

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
    """Ask a stack until its broker is what it is in use. Raises VoidRunError.

    Its virtual machine compiles what is asked often: a broker's first five thousand calls take it
    half as long again as those that follow.
    """
    calls = QUICK_WARM_CALLS if setup.quick else WARM_CALLS
    task = Task(url=url, key=key, path=path, body=body, clients=WARM_CLIENTS, calls=calls)
    load(task, setup.work, "warm-up")


def load(task: Task, folder: Path, name: str = "clients") -> Result:
    """Run the clients of `task` in a process of their own.

    Raises VoidRunError on any refusal and any broken stream.
    """
    with_load = LoadRun(task, folder, name)
    try:
        with_load.wait_until_ready()
        return with_load.run()
    finally:
        with_load.stop()


class LoadRun:
    """A process of clients that have connected and wait."""

    def __init__(self, task: Task, folder: Path, name: str) -> None:
        """Start it."""
        argument = msgspec.json.encode(task).decode()
        self._child = LineChild(
            name, "benchmarks.children.online_load", [argument], folder / "logs"
        )

    def wait_until_ready(self) -> None:
        """Return once every client has been answered. Raises VoidRunError."""
        self._child.expect("ready", READY_S_MAX)

    def run(self) -> Result:
        """Run and return what was found. Raises VoidRunError."""
        self._child.tell("go")
        found = msgspec.json.decode(self._child.expect("result", DONE_S_MAX), type=Result)
        if found.refused:
            raise VoidRunError(f"{found.refused} calls were refused")
        if found.broken:
            raise VoidRunError(f"{found.broken} streams broke off or lack pieces")
        return found

    def stop(self) -> None:
        """End the process."""
        self._child.stop()


def percentile(samples: list[float], percent: int) -> float:
    """Return a percentile between 1 and 99 of at least two samples."""
    return quantiles(samples, n=100, method="inclusive")[percent - 1]
