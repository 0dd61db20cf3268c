"""Rate of unary calls and streamed tokens of one API process, and its memory with open streams.

What: unary calls a second (64 clients, simulated engine at 5 ms); streamed tokens a second (128
streams of 256 tokens, as fast as the simulated engine generates, one event each); resident memory
of the API with 2,000 open streams. CPU is that of every process of the stack, by role.

How: the clients are sockets in a process on the same machine and take CPU from the stack; their CPU
is reported separately. Runs follow each other and the first is dropped.

Goal: 1,500 calls/s, 20,000 tokens/s, 512 MiB.
"""

from contextlib import closing

from benchmarks.children.online_load import LoadTask
from benchmarks.load.load_runs import LoadProcess, chat_body, percentile, run_measured
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.statistics.cpu import PeakMemory
from benchmarks.statistics.pairing import role_rows, run_repeatedly, single_row

MODEL = "simulated"
PATH = "/v1/chat/completions"
UNARY_CLIENTS, UNARY_CALLS, QUICK_UNARY_CALLS = 64, 20_000, 500
STREAMS, STREAM_TOKENS, STREAM_CALLS, QUICK_STREAM_CALLS = 128, 256, 1_024, 128
OPEN_STREAMS, QUICK_OPEN_STREAMS = 2_000, 100
OPEN_TOKENS, OPEN_TOKEN_MS = 64, 250
MIB = 1024 * 1024


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    options = ("--simulated-latency-ms", "5", "--simulated-concurrency", "512")
    with running_stack(setup.work / "stack", *options) as stack:
        unary, unary_voids = run_repeatedly(lambda: _unary(setup, stack), setup)
        streamed, stream_voids = run_repeatedly(lambda: _streams(setup, stack), setup)
    rows = [
        single_row("unary calls", "calls/s", unary, lambda run: run.rate, goal="≥ 1,500"),
        single_row("unary p50", "ms", unary, lambda run: run.facts["p50_ms"]),
        single_row("unary p99", "ms", unary, lambda run: run.facts["p99_ms"]),
        *role_rows(unary, "a unary call"),
        single_row("streamed tokens", "tokens/s", streamed, lambda run: run.rate, goal="≥ 20,000"),
        *role_rows(streamed, "a streamed token"),
        _memory(setup),
    ]
    return Report(
        name="online_rate", rows=rows, runs=unary + streamed, voids=unary_voids + stream_voids
    )


def _unary(setup: Setup, stack: RunningStack) -> Run:
    calls = setup.count(UNARY_CALLS, QUICK_UNARY_CALLS)
    task = _task(stack, chat_body(MODEL, stream=False), clients=UNARY_CLIENTS, calls=calls)
    found, used = run_measured(task, setup.work, stack.roles())
    facts = {
        "p50_ms": percentile(found.latencies_s, 50) * 1000,
        "p99_ms": percentile(found.latencies_s, 99) * 1000,
        "clients_cpu_s": found.cpu_s,
    }
    return Run(items=calls, seconds=found.seconds, cpu_s=used, facts=facts)


def _streams(setup: Setup, stack: RunningStack) -> Run:
    calls = setup.count(STREAM_CALLS, QUICK_STREAM_CALLS)
    body = chat_body(MODEL, stream=True, max_tokens=STREAM_TOKENS)
    task = _task(stack, body, clients=STREAMS, calls=calls, pieces_min=STREAM_TOKENS)
    found, used = run_measured(task, setup.work, stack.roles())
    facts = {"clients_cpu_s": found.cpu_s, "calls": float(calls)}
    return Run(items=calls * STREAM_TOKENS, seconds=found.seconds, cpu_s=used, facts=facts)


def _memory(setup: Setup) -> Row:
    """Return the API's peak memory while every stream is open and generates slowly."""
    streams = QUICK_OPEN_STREAMS if setup.quick else OPEN_STREAMS
    options = (
        *("--simulated-latency-ms", "5", "--simulated-token-ms", str(OPEN_TOKEN_MS)),
        *("--simulated-concurrency", str(streams + 500)),
    )
    with running_stack(setup.work / "open", *options) as stack:
        body = chat_body(MODEL, stream=True, max_tokens=OPEN_TOKENS)
        task = _task(stack, body, clients=streams, calls=streams, pieces_min=OPEN_TOKENS)
        with (
            PeakMemory({"api": stack.roles()["api"]}) as peak,
            closing(LoadProcess(task, setup.work, "open")) as open_streams,
        ):
            open_streams.wait_until_ready()
            open_streams.run()
    return Row(
        metric=f"api with {streams:,} open streams",
        unit="MiB",
        ours=peak.bytes["api"] / MIB,
        goal="< 512",
    )


def _task(
    stack: RunningStack, body: str, *, clients: int, calls: int, pieces_min: int = 0
) -> LoadTask:
    return LoadTask(
        url=stack.url,
        key=stack.key,
        path=PATH,
        body=body,
        clients=clients,
        calls=calls,
        pieces_min=pieces_min,
    )
