"""A1: items a second, and CPU an item, of a complete job when the engine costs nothing.

What: 200,000 chat items of 1 KB, from the creation of the batch to the response that reports it
completed: validation, expansion, batching, simulated execution, rows, files. The upload precedes it
and is reported separately.

How: interleaved with the throwaway pipeline: the same components on the same broker and database
programs without the guarantees, that is without unique ids, committed offsets, counters and leases.
The pipeline is no lower bound: it writes rows by INSERT … unnest … ON CONFLICT, at most 2,000 in a
transaction, under a text key, where Millrace uses binary COPY of up to 5,000; and its producers are
idempotent with acks=all, as Millrace's are. Both stacks stay up; the one that is not measured is
idle. CPU is that of every process, broker and database included.

Goal: 20,000 items/s now, 40,000 next; 0.8 of the throwaway's rate with every guarantee.
"""

from benchmarks.data.input_files import chat_file
from benchmarks.runs import Report, Setup
from benchmarks.stacks.services import running_kafka, running_postgres
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from benchmarks.statistics.pairing import fact, paired_row, role_rows, run_pairs, single_row
from benchmarks.throwaway.pipeline import Throwaway

ITEMS, QUICK_ITEMS = 200_000, 2_000
MODEL = "simulated"
GOAL = "≥ 20,000 now, 40,000 next; ratio ≥ 0.8"


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    items = setup.count(ITEMS, QUICK_ITEMS)
    file = chat_file(setup.work / "input.jsonl", items, model=MODEL)
    peer_folder = setup.work / "throwaway"
    peer_folder.mkdir()
    with (
        running_kafka(peer_folder) as kafka,
        running_postgres(peer_folder) as postgres,
        running_stack(setup.work / "stack") as stack,
    ):
        job = upload_job(stack, file, setup.work / "output.jsonl")
        peer = Throwaway(kafka, postgres, file, peer_folder)
        pairs, voids = run_pairs(job.run, peer.run, setup)
    ours, theirs = [pair.ours for pair in pairs], [pair.peer for pair in pairs]
    rows = [
        paired_row("batch create to completed", "items/s", pairs, lambda run: run.rate, goal=GOAL),
        paired_row("all processes", "µs CPU/item", pairs, lambda run: run.cpu_us),
        *role_rows(ours, "ours"),
        *role_rows(theirs, "throwaway"),
        single_row("upload", "MB/s", ours, fact("upload_mb_per_s")),
    ]
    return Report(name="bulk_control_plane", rows=rows, pairs=pairs, voids=voids)
