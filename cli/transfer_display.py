"""Shows the transfer of a model's files: a bar on a terminal, else one line each."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import typer

from registry.transfers import Report

_MIB = 1024 * 1024


@contextmanager
def shown_transfers() -> Iterator[Report]:
    """Yield a function that shows bytes on stderr."""
    if not sys.stderr.isatty():
        yield _LineReport()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TransferSpeedColumn

    tasks: dict[str, TaskID] = {}
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        yield report


class _LineReport:
    """Writes a line when a transfer begins."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._lock = Lock()

    def __call__(self, what: str, _done: int, total: int) -> None:
        with self._lock:
            if what not in self._begun:
                self._begun.add(what)
                typer.echo(f"millrace: {what}: {total / _MIB:.1f} MiB", err=True)
