"""Prints the demo's results: throughput, the conservation check, and a semantic search."""

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from cli.demo.demo_jobs import CHATTER, QUERIES_JOB, TEXTS_JOB, DemoJob, FinishedJob, find_problems
from cli.demo.demo_texts import DocumentedName

if TYPE_CHECKING:
    import numpy as np

    Vectors: TypeAlias = np.typing.NDArray[np.float32]

MATCHES_SHOWN = 3
_TEXT_CHARS_SHOWN = 90

WriteLine = Callable[[str], None]


def print_report(
    jobs: Mapping[DemoJob, FinishedJob], documented: Sequence[DocumentedName], write_line: WriteLine
) -> bool:
    """Print the results of every job; return whether all checks passed."""
    for name, job in jobs.items():
        write_line(
            f"{name.name}: {job.progress.ended:,} items in {job.seconds:.1f} s, "
            f"{job.items_per_s:,.0f} items/s, {job.tokens:,} tokens, upload and download included"
        )
    write_line(f"({CHATTER} has random weights: its answers are nonsense.)")
    passed = _report_checks(jobs, write_line)
    if passed:
        _report_search(jobs, {d.name: d.text for d in documented}, write_line)
    return passed


def _report_checks(jobs: Mapping[DemoJob, FinishedJob], write_line: WriteLine) -> bool:
    write_line("\nConservation: input = succeeded + failed + cancelled + expired")
    all_passed = True
    for name, job in jobs.items():
        p = job.progress
        sums = f"{p.total:,} = {p.succeeded:,} + {p.failed:,} + {p.cancelled:,} + {p.expired:,}"
        problems = find_problems(job)
        verdict = "; ".join(problems) or "every custom_id exactly once, in order"
        write_line(f"  {'FAILED' if problems else 'ok'}  {name.name}: {sums}; {verdict}")
        all_passed = all_passed and not problems
    return all_passed


def _report_search(
    jobs: Mapping[DemoJob, FinishedJob], text_by_name: Mapping[str, str], write_line: WriteLine
) -> None:
    names, vectors = read_embeddings(jobs[TEXTS_JOB].files.results)
    queries, query_vectors = read_embeddings(jobs[QUERIES_JOB].files.results)
    for query, vector in zip(queries, query_vectors, strict=True):
        write_line(f"\n“{query}”")
        for name, cosine in most_similar(names, vectors, vector, MATCHES_SHOWN):
            write_line(f"  {cosine:.2f}  {text_by_name[name][:_TEXT_CHARS_SHOWN]}")


def read_embeddings(path: Path) -> "tuple[list[str], Vectors]":
    """Return the custom_ids of an output file and their normalised vectors, one per row."""
    import numpy as np

    with path.open("rb") as lines:
        results = [msgspec.json.decode(line) for line in lines]
    texts = [result["response"]["body"]["data"][0]["embedding"] for result in results]
    rows = [np.frombuffer(base64.b64decode(text), dtype="<f4") for text in texts]
    vectors = np.stack(rows).astype(np.float32)
    names = [result["custom_id"] for result in results]
    return names, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def most_similar(
    names: Sequence[str], vectors: "Vectors", query: "Vectors", count: int
) -> list[tuple[str, float]]:
    """Return the `count` names with the highest cosine similarity to `query`, descending."""
    import numpy as np

    cosines = vectors @ query
    return [(names[index], float(cosines[index])) for index in np.argsort(-cosines)[:count]]
