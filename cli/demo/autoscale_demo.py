"""`millrace demo --autoscale`: a pool that begins at zero, wakes, grows, and sleeps again.

1. A call reaches the sleeping pool and waits for a replica. 2. A job and a burst of calls need more
replicas. 3. Everything is answered, and the pool goes back to zero. The engine is simulated.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from cli.admin.scaling_records import ScalingRecords
from cli.api_client import Client, connect, transient_errors
from cli.demo.demo_jobs import DemoJob, FinishedJob, find_problems, run_job, write_requests
from cli.demo.demo_stack import demo_stack
from cli.demo.scaling_plot import svg_plot, text_plot
from cli.demo.scaling_samples import ScalingSample, is_at_zero, replica_seconds, sample_of
from cli.stack.data_folder import read_state
from cli.stack.errors import StackError
from cli.stack.processes.role_children import KAFKA
from topics.records.catalogue import SCALING
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

MODEL: Final = "simulated"
POOL: Final = "simulated-simulated"
POLICY: Final = f"""\
# A pool that follows its work closely: production keeps longer windows.
[gpu_types.simulated]
memory_gib = 1
cost_per_hour = 1
throughput = [[4, 900]]

[pools.{POOL}]
gpu_types = ["simulated"]
replicas_min = 0
replicas_max = 3
queue_s = 2
idle_s = 5
stabilization_s = 10
"""
ENGINE: Final = ("--simulated-latency-ms", "400", "--simulated-concurrency", "4")
"""Ten items a second of each replica: slow enough that three need little CPU."""

JOB: Final = DemoJob("autoscale", "/v1/chat/completions")
JOB_ITEMS: Final = 200
CALLS: Final = 300
CALLERS: Final = 32
TOKENS_MAX: Final = 16
ZERO_S_MAX: Final = 180.0
"""Longest wait for zero after the last answer: three steps of 30 s and the window, doubled."""

_POLL_S: Final = 0.5
_SHOW_S: Final = 2.0
_PLOT_CHARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleRun:
    """What happened; times are seconds since the epoch."""

    samples: tuple[ScalingSample, ...]
    started_s: float  # the first call was sent
    ended_s: float  # the pool was at zero again, or this was given up
    wake_s: float  # from the first call to its answer
    calls: int
    answered: int
    job: FinishedJob
    is_at_zero: bool

    def problems(self) -> list[str]:
        """Return one line for each expectation that was not met."""
        found = find_problems(self.job)
        if self.answered != self.calls:
            found.append(f"{self.calls} calls had {self.answered} answers")
        if not self.is_at_zero:
            found.append("the pool did not go back to zero")
        return found

    def summary(self) -> list[str]:
        """Return the figures, a line each."""
        used = replica_seconds(self.samples, self.ended_s)
        most = max((one.replicas for one in self.samples), default=0)
        seconds = self.ended_s - self.started_s
        problems = self.problems()
        verdict = "FAILED: " + "; ".join(problems) if problems else "ok: each answered once"
        return [
            f"The call to the sleeping pool was answered after {self.wake_s:.1f} s.",
            f"{self.job.progress.ended:,} items of a job and {self.answered:,} of {self.calls:,} "
            f"calls; {verdict}.",
            f"{used:,.0f} replica-seconds in {seconds:.0f} s; {most} replicas throughout would be "
            f"{most * seconds:,.0f}.",
        ]


class ScalingWatch:
    """Reads what the autoscaler decides about the pool, in a thread of its own."""

    def __init__(self, kafka: KafkaSettings, show: Callable[[ScalingSample], None]) -> None:
        """`show` gets a sample about every two seconds, and each that changes the replicas."""
        self._kafka, self._show = kafka, show
        self._stop = threading.Event()
        self._samples: tuple[ScalingSample, ...] = ()
        self._thread = threading.Thread(target=self._run, name="scaling-watch", daemon=True)

    @property
    def samples(self) -> tuple[ScalingSample, ...]:
        """All samples, the oldest first."""
        return self._samples

    @contextlib.contextmanager
    def running(self) -> Iterator["ScalingWatch"]:
        """Read during the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        log, shown = ScalingRecords(), None
        with contextlib.closing(
            TopicTailReader(self._kafka, SCALING, client_id="millrace-demo")
        ) as reader:
            while not self._stop.is_set():
                for record in reader.poll(_POLL_S):
                    log.add([record])
                    newest = log.pools.get(POOL)
                    sample = sample_of(newest) if newest is not None else None
                    if sample is None or sample in self._samples[-1:]:
                        continue
                    self._samples = (*self._samples, sample)
                    if shown is None or _differs(shown, sample):
                        shown = sample
                        self._show(sample)


def _differs(shown: ScalingSample, sample: ScalingSample) -> bool:
    counts = (shown.replicas, shown.target) != (sample.replicas, sample.target)
    return counts or sample.at_s - shown.at_s >= _SHOW_S


def autoscale_demo(out: Path) -> bool:
    """Run the demo; return whether each item was answered once and the pool is back at zero.

    Raises StackError.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    out.mkdir(parents=True, exist_ok=True)
    policy, plot = out / "scaling.toml", out / "scaling.svg"
    policy.write_text(POLICY)
    console.print(f"Starting Kafka, Postgres and every role without a replica; {policy} …")
    with demo_stack((*ENGINE, "--autoscale", str(policy.absolute())), out / "logs") as stack:
        try:
            url, key = stack.wait_until_ready()
            state = read_state(stack.data)
            if state is None:
                raise StackError("The stack ended.")
            servers = {KAFKA: state.kafka_bootstrap_servers, **state.kafka_credentials}
            run = _run(connect(url, key), KafkaSettings.from_env(servers), out, console)
            if run.problems():
                stack.keep_logs()
        finally:
            console.print("\nStopping everything …")
    lines = text_plot(run.samples, run.started_s, run.ended_s, width=_PLOT_CHARS)
    plot.write_text(svg_plot(run.samples, run.started_s, run.ended_s, title=f"Pool {POOL}"))
    console.print("\n" + "\n".join((*lines, "", *run.summary(), f"Plot: {plot.absolute()}")))
    return not run.problems()


def _run(client: Client, kafka: KafkaSettings, out: Path, console: Console) -> AutoscaleRun:
    write_requests(JOB.files(out).requests, JOB.endpoint, _requests())
    started_s = time.time()

    def show(sample: ScalingSample) -> None:
        if sample.at_s < started_s:
            return
        console.print(
            f"{sample.at_s - started_s:4.0f} s  {sample.replicas} of {sample.target} "
            f"replicas, need {sample.need:.2f}, {sample.waiting_tokens:,.0f} tokens wait"
        )

    with ScalingWatch(kafka, show).running() as watch:
        console.print("A call reaches the pool, which has no replica.")
        first = _call(client, 0)
        wake_s = time.time() - started_s
        console.print(f"It was answered after {wake_s:.1f} s. A job and a burst of calls follow.")
        with ThreadPoolExecutor(CALLERS + 1) as callers:
            job = callers.submit(run_job, client, JOB, out, quiet=True)
            answers = list(callers.map(lambda number: _call(client, number), range(1, CALLS)))
            finished = job.result()
        worked_s = time.time()
        console.print("All is answered. The pool goes back to zero.")
        while not (slept := is_at_zero(watch.samples, worked_s)):
            if time.time() - worked_s > ZERO_S_MAX:
                break
            time.sleep(_POLL_S)
    return AutoscaleRun(
        samples=tuple(one for one in watch.samples if one.at_s >= started_s),
        started_s=started_s,
        ended_s=time.time(),
        wake_s=wake_s,
        calls=CALLS,
        answered=first + sum(answers),
        job=finished,
        is_at_zero=slept,
    )


def _requests() -> Iterator[tuple[str, dict[str, object]]]:
    for number in range(JOB_ITEMS):
        yield f"item-{number}", _body(f"item {number} of the job")


def _body(text: str) -> dict[str, object]:
    messages = [{"role": "user", "content": f"Repeat: {text}."}]
    return {"model": MODEL, "max_tokens": TOKENS_MAX, "messages": messages}


def _call(client: Client, number: int) -> bool:
    """Return whether a call had an answer; the client repeats one that was refused."""
    try:
        answer = client.chat.completions.create(
            model=MODEL,
            max_tokens=TOKENS_MAX,
            messages=[{"role": "user", "content": f"Repeat: call {number}."}],
        )
    except transient_errors():
        return False
    return bool(answer.choices and answer.choices[0].message.content)
