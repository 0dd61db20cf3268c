"""A2: CPU relative to the least work that turns the input file into the output file.

What: CPU µs an item of all Millrace processes over those of one process that reads the file, parses
each line, packs envelopes of 100 items, unpacks them, builds the result lines and writes the file.

How: the job of A1, interleaved with that process (`benchmarks/children/floor.py`). CPU ratios
hardly depend on other load of the machine.

Goal: at most 6 now, 3.5 next.
"""

from benchmarks.children.line_child import run_child
from benchmarks.data.input_files import InputFile, chat_file
from benchmarks.runs import Report, Run, Setup
from benchmarks.stacks.stack import running_stack
from benchmarks.stacks.stack_jobs import upload_job
from benchmarks.stacks.verification import verify_output
from benchmarks.statistics.pairing import paired_row, role_rows, run_pairs

ITEMS, QUICK_ITEMS = 200_000, 2_000
MODEL = "simulated"
GOAL = "ratio ≤ 6 now, 3.5 next"
FLOOR_S_MAX = 300.0


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    file = chat_file(setup.work / "input.jsonl", setup.count(ITEMS, QUICK_ITEMS), model=MODEL)
    with running_stack(setup.work / "stack") as stack:
        job = upload_job(stack, file, setup.work / "output.jsonl")
        pairs, voids = run_pairs(job.run, lambda: run_floor(file, setup), setup)
    rows = [
        paired_row(
            "all processes over the floor", "µs CPU/item", pairs, lambda run: run.cpu_us, goal=GOAL
        ),
        *role_rows([pair.ours for pair in pairs], "ours"),
    ]
    return Report(name="floor_fraction", rows=rows, pairs=pairs, voids=voids)


def run_floor(file: InputFile, setup: Setup) -> Run:
    """Run the floor once in a process of its own, which measures itself without its start."""
    output = setup.work / "floor.jsonl"
    arguments = [str(file.path), str(output)]
    found = run_child("floor", "benchmarks.children.floor", arguments, setup.work, FLOOR_S_MAX)
    verify_output(output, file.items)
    return Run(items=file.items, seconds=found["seconds"], cpu_s={"floor": found["cpu_s"]})
