"""What the demo shows at its end: speed, the conservation check, and the nearest functions."""

from collections.abc import Callable, Mapping, Sequence

from cli.demo.demo_jobs import FinishedJob, find_problems
from cli.demo.demo_requests import CHATTER, QUERIES_JOB, TEXTS_JOB, DemoJob
from cli.demo.demo_search import most_similar, read_embeddings
from cli.demo.demo_texts import DocumentedName

NEAREST_COUNT = 3
_TEXT_CHARS_SHOWN = 90

Say = Callable[[str], None]


def print_report(
    jobs: Mapping[DemoJob, FinishedJob], documented: Sequence[DocumentedName], say: Say
) -> bool:
    """Say how every job went; return whether all checks passed."""
    for name, job in jobs.items():
        say(
            f"{name.name}: {job.progress.ended:,} items in {job.seconds:.1f} s, "
            f"{job.items_per_s:,.0f} items/s, {job.tokens:,} tokens, upload and download included"
        )
    say(f"({CHATTER} has random weights: what it says is nonsense.)")
    passed = _report_checks(jobs, say)
    if passed:
        _report_search(jobs, {d.name: d.text for d in documented}, say)
    return passed


def _report_checks(jobs: Mapping[DemoJob, FinishedJob], say: Say) -> bool:
    say("\nConservation: input = succeeded + failed + cancelled + expired")
    all_passed = True
    for name, job in jobs.items():
        p = job.progress
        sums = f"{p.total:,} = {p.succeeded:,} + {p.failed:,} + {p.cancelled:,} + {p.expired:,}"
        problems = find_problems(job)
        verdict = "; ".join(problems) or "every custom_id exactly once, in order"
        say(f"  {'FAILED' if problems else 'ok'}  {name.name}: {sums}; {verdict}")
        all_passed = all_passed and not problems
    return all_passed


def _report_search(
    jobs: Mapping[DemoJob, FinishedJob], text_by_name: Mapping[str, str], say: Say
) -> None:
    names, vectors = read_embeddings(jobs[TEXTS_JOB].files.results)
    questions, asked = read_embeddings(jobs[QUERIES_JOB].files.results)
    for question, vector in zip(questions, asked, strict=True):
        say(f"\n“{question}”")
        for name, cosine in most_similar(names, vectors, vector, NEAREST_COUNT):
            say(f"  {cosine:.2f}  {text_by_name[name][:_TEXT_CHARS_SHOWN]}")
