"""Runs of `benchmarks.children.online_load`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import msgspec

from benchmarks.children.line_child import LineChild
from benchmarks.children.online_load import LoadResult, LoadTask
from benchmarks.data.input_files import CHAT
from benchmarks.runs import Setup, VoidRunError
from benchmarks.statistics.cpu import cpu_by_role, cpu_used

READY_S_MAX = 60.0
DONE_S_MAX = 300.0
WARM_CALLS, QUICK_WARM_CALLS = 6_000, 60
WARM_CLIENTS = 8
PROMPT = "Say in one sentence what a durable log is good for."


class Server(NamedTuple):
    """A server of chat calls."""

    url: str
    key: str = "none"


def chat_task(
    server: Server, model: str, *, clients: int, calls: int, tokens: int = 16, pieces_min: int = 0
) -> LoadTask:
    """Return a load of short chat calls, which are streams if they need pieces.

    `tokens` is the most that a call may generate.
    """
    message = {"role": "user", "content": PROMPT}
    body: dict[str, object] = {"model": model, "messages": [message], "max_tokens": tokens}
    if pieces_min:
        body["stream"] = True
    return LoadTask(
        url=server.url + CHAT,
        key=server.key,
        body=msgspec.json.encode(body).decode(),
        clients=clients,
        calls=calls,
        pieces_min=pieces_min,
    )


def warm_up(setup: Setup, server: Server, model: str, *, tokens: int = 16) -> None:
    """Call a stack until its broker has warmed up. Raises VoidRunError.

    The broker's JIT compiles hot code: its first five thousand calls take half as long again as
    later ones.
    """
    calls = QUICK_WARM_CALLS if setup.quick else WARM_CALLS
    task = chat_task(server, model, clients=WARM_CLIENTS, calls=calls, tokens=tokens)
    run_load(task, setup.work, "warm-up")


def run_load(task: LoadTask, folder: Path, name: str = "clients") -> LoadResult:
    """Run the clients of `task` in a child process.

    Raises VoidRunError on any refusal and any broken stream.
    """
    with connected_load(task, folder, name) as run:
        return run()


def run_measured(
    task: LoadTask, folder: Path, roles: Mapping[str, int]
) -> tuple[LoadResult, dict[str, float]]:
    """Run a load and return its result and the CPU seconds of each role meanwhile."""
    before = cpu_by_role(roles)
    found = run_load(task, folder)
    return found, cpu_used(before, cpu_by_role(roles))


@contextmanager
def connected_load(task: LoadTask, folder: Path, name: str) -> Iterator[Callable[[], LoadResult]]:
    """Start the clients of `task` in a child process; yield a function that runs the calls.

    Every client has had a response by then. Both raise VoidRunError.
    """
    argument = msgspec.json.encode(task).decode()
    with closing(
        LineChild(name, "benchmarks.children.online_load", [argument], folder / "logs")
    ) as child:
        child.expect("ready", READY_S_MAX)

        def run() -> LoadResult:
            child.send_line("go")
            found = msgspec.json.decode(child.expect("result", DONE_S_MAX), type=LoadResult)
            if found.refused:
                raise VoidRunError(f"{found.refused} calls were refused")
            if found.broken:
                raise VoidRunError(f"{found.broken} streams are incomplete or have an error")
            return found

        yield run


def percentiles_ms(
    samples_s: Sequence[float], percents: Iterable[int], prefix: str = ""
) -> dict[str, float]:
    """Return `p50_ms` and so on of at least two samples; percents are between 1 and 99."""
    cuts_s = quantiles(samples_s, n=100, method="inclusive")
    return {f"{prefix}p{percent}_ms": cuts_s[percent - 1] * 1000 for percent in percents}
