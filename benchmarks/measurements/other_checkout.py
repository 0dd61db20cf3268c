"""A1 against another checkout: what a change costs a complete job when the engine costs nothing.

What: as `bulk_control_plane`, but the peer is `millrace up` of another checkout.

How: interleaved jobs of the same file on both stacks, which stay up; the one that is not measured
is idle. A machine whose speed drifts by a fifth within minutes slows both sides of a pair, where
two runs of `bulk_control_plane` one after the other would compare the minutes.

Goal: 0.95, unless the change has a goal of its own.
"""

from benchmarks.data.input_files import chat_file
from benchmarks.measurements.bulk_control_plane import ITEMS, MODEL, QUICK_ITEMS
from benchmarks.runs import Report, Setup, VoidRunError
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from benchmarks.statistics.pairing import paired_row, role_rows, run_pairs

GOAL = "≥ 0.95"


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    if setup.checkout is None:
        raise VoidRunError("the other checkout is not named")
    file = chat_file(setup.work / "input.jsonl", setup.count(ITEMS, QUICK_ITEMS), model=MODEL)
    with (
        running_stack(setup.work / "ours") as stack,
        running_stack(setup.work / "other", checkout=setup.checkout) as other,
    ):
        job = upload_job(stack, file, setup.work / "output.jsonl")
        peer = upload_job(other, file, setup.work / "other_output.jsonl")
        pairs, voids = run_pairs(job.run, peer.run, setup)
    rows = [
        paired_row("batch create to completed", "items/s", pairs, lambda run: run.rate, goal=GOAL),
        paired_row("all processes", "µs CPU/item", pairs, lambda run: run.cpu_us),
        *role_rows([pair.ours for pair in pairs], "ours"),
        *role_rows([pair.peer for pair in pairs], "other"),
    ]
    return Report(name="other_checkout", rows=rows, pairs=pairs, voids=voids)
