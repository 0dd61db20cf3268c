"""Reports the demo's result: speed, the conservation check, and search results."""

from collections.abc import Callable, Mapping, Sequence

from cli.demo.demo_jobs import FinishedJob, problems_of
from cli.demo.demo_requests import CHATTER, QUERIES_JOB, TEXTS_JOB, DemoJob
from cli.demo.demo_search import nearest, read_embeddings
from cli.demo.demo_texts import DocumentedName

NEAREST_COUNT = 3
_TEXT_CHARS_SHOWN = 90

PrintLine = Callable[[str], None]


def report(
    jobs: Mapping[DemoJob, FinishedJob], documented: Sequence[DocumentedName], print_line: PrintLine
) -> bool:
    """Print the result of every job; return whether all checks passed."""
    for name, job in jobs.items():
        print_line(
            f"{name.name}: {job.progress.ended:,} items in {job.seconds:.1f} s, "
            f"{job.items_per_s:,.0f} items/s, {job.tokens:,} tokens, upload and download included"
        )
    print_line(f"({CHATTER} has random weights: what it says is nonsense.)")
    passed = _report_checks(jobs, print_line)
    if passed:
        _report_search(jobs, {d.name: d.text for d in documented}, print_line)
    return passed


def _report_checks(jobs: Mapping[DemoJob, FinishedJob], print_line: PrintLine) -> bool:
    print_line("\nConservation: input = succeeded + failed + cancelled + expired")
    all_passed = True
    for name, job in jobs.items():
        p = job.progress
        sums = f"{p.total:,} = {p.succeeded:,} + {p.failed:,} + {p.cancelled:,} + {p.expired:,}"
        problems = problems_of(job)
        result = "; ".join(problems) or "every custom_id exactly once, in order"
        print_line(f"  {'FAILED' if problems else 'ok'}  {name.name}: {sums}; {result}")
        all_passed = all_passed and not problems
    return all_passed


def _report_search(
    jobs: Mapping[DemoJob, FinishedJob], text_by_name: Mapping[str, str], print_line: PrintLine
) -> None:
    names, vectors = read_embeddings(jobs[TEXTS_JOB].files.results)
    queries, query_vectors = read_embeddings(jobs[QUERIES_JOB].files.results)
    for query, vector in zip(queries, query_vectors, strict=True):
        print_line(f"\n“{query}”")
        for name, cosine in nearest(names, vectors, vector, NEAREST_COUNT):
            print_line(f"  {cosine:.2f}  {text_by_name[name][:_TEXT_CHARS_SHOWN]}")
