"""Shows a job on stderr: a progress bar on a terminal, one line for each state elsewhere."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from cli.batch.job_progress import JobStatus, progress_of

if TYPE_CHECKING:
    from openai.types import Batch

OUTCOME_STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "expired": "yellow"}


class JobDisplay:
    """Shows one job while its block runs. Follows NO_COLOR and TERM."""

    def __init__(self, label: str, *, quiet: bool = False, console: Console | None = None) -> None:
        """Write to `console`, by default stderr."""
        self._console = console or Console(file=sys.stderr, quiet=quiet)
        self._label = label
        self._live = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._state = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(compact=True),
            _OutcomesColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task(label, total=None, job=None)

    def __enter__(self) -> Self:
        """Start the progress bar."""
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the progress bar; its last state stays on the screen."""
        if self._live:
            self._progress.stop()

    def show(self, batch: "Batch") -> None:
        """Show the current state of the job."""
        job = progress_of(batch)
        if self._live:
            self._progress.update(
                self._task,
                description=f"{self._label} {job.state}",
                total=job.total or None,
                completed=job.ended,
                job=job,
            )
        elif not self._quiet and job.state != self._state:
            sys.stderr.write(f"{batch.id} {job.state} {job.ended}/{job.total}\n")
        self._state = job.state


class _RateColumn(ProgressColumn):
    """Items per second: of the last seconds while the job runs, of its entire time at the end."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


class _OutcomesColumn(ProgressColumn):
    """The number of items by outcome, without zeros."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        job: JobStatus | None = task.fields.get("job")
        counts = {} if job is None else {name: getattr(job, name) for name in OUTCOME_STYLES}
        shown = [
            (f"{count} {name} ", OUTCOME_STYLES[name]) for name, count in counts.items() if count
        ]
        return Text.assemble(*shown)
