"""Rate of unary calls and streamed tokens of one API process, and its memory with open streams.

What: unary calls a second (64 clients, simulated engine at 5 ms); streamed tokens a second (128
streams of 256 tokens, as fast as the simulated engine generates, one event each); resident memory
of the API with 2,000 open streams. CPU is that of every process of the stack, by role.

How: the clients are sockets in a process on the same machine and take CPU from the stack; their CPU
is reported separately. Runs follow each other and the first is dropped.

Goal: 1,500 calls/s, 20,000 tokens/s, 512 MiB.
"""

from benchmarks.children.online_load import LoadTask
from benchmarks.runs import Report, Row, Run, Setup
from benchmarks.stacks.load_runs import chat_task, connected_load, percentiles_ms, run_measured
from benchmarks.stacks.stack import RunningStack, running_stack
from benchmarks.statistics.cpu import peak_memory
from benchmarks.statistics.pairing import fact, role_rows, run_repeatedly, single_row

MODEL = "simulated"
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
        single_row("unary p50", "ms", unary, fact("p50_ms")),
        single_row("unary p99", "ms", unary, fact("p99_ms")),
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
    task = chat_task(stack.server, MODEL, clients=UNARY_CLIENTS, calls=calls)
    found, used = run_measured(task, setup.work, stack.roles())
    facts = percentiles_ms(found.latencies_s, (50, 99)) | {"clients_cpu_s": found.cpu_s}
    return Run(items=calls, seconds=found.seconds, cpu_s=used, facts=facts)


def _streams(setup: Setup, stack: RunningStack) -> Run:
    calls = setup.count(STREAM_CALLS, QUICK_STREAM_CALLS)
    task = _stream_task(stack, STREAMS, calls, STREAM_TOKENS)
    found, used = run_measured(task, setup.work, stack.roles())
    facts = {"clients_cpu_s": found.cpu_s, "calls": calls}
    return Run(items=calls * STREAM_TOKENS, seconds=found.seconds, cpu_s=used, facts=facts)


def _stream_task(stack: RunningStack, clients: int, calls: int, tokens: int) -> LoadTask:
    count = {"clients": clients, "calls": calls, "tokens": tokens, "pieces_min": tokens}
    return chat_task(stack.server, MODEL, **count)


def _memory(setup: Setup) -> Row:
    """Return the API's peak memory while every stream is open and generates slowly."""
    streams = QUICK_OPEN_STREAMS if setup.quick else OPEN_STREAMS
    options = (
        *("--simulated-latency-ms", "5", "--simulated-token-ms", str(OPEN_TOKEN_MS)),
        *("--simulated-concurrency", str(streams + 500)),
    )
    with running_stack(setup.work / "open", *options) as stack:
        task = _stream_task(stack, streams, streams, OPEN_TOKENS)
        with (
            peak_memory({"api": stack.roles()["api"]}) as peak,
            connected_load(task, setup.work, "open") as run_open_streams,
        ):
            run_open_streams()
    return Row(
        metric=f"api with {streams:,} open streams",
        unit="MiB",
        ours=peak["api"] / MIB,
        goal="< 512",
    )
