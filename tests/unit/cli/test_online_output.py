"""Goal: measures and background jobs are shown completely, without empty fields."""

from array import array
from collections import Counter

from cli.batch.background_job_commands import job_fields
from cli.load.bench_online_command import measure_rows, measures
from cli.load.load_client import LoadMeasurement


def seen() -> LoadMeasurement:
    latencies_s = array("d", [n / 1000 for n in range(1, 101)])
    return LoadMeasurement(
        2.0, latencies_s, latencies_s, 400, Counter({"timeout": 1, "503 no_capacity": 2})
    )


def test_measures_have_percentiles_and_error_counts() -> None:
    assert measures(seen(), stream=True) == {
        "seconds": 2.0,
        "calls": 100,
        "calls_per_s": 50.0,
        "latency_ms": {"p50": 50.0, "p95": 95.0, "p99": 99.0},
        "first_piece_ms": {"p50": 50.0, "p95": 95.0, "p99": 99.0},
        "pieces_per_s": 200.0,
        "errors": {"503 no_capacity": 2, "timeout": 1},
    }


def test_measures_without_successful_calls_have_no_times() -> None:
    found = measures(LoadMeasurement(seconds=1.0), stream=False)
    assert (found["calls"], found["latency_ms"]) == (0, {})
    assert "first_piece_ms" not in found


def test_measure_rows_flatten_percentiles_and_errors() -> None:
    shown = dict(measure_rows(measures(seen(), stream=True)))
    assert shown["calls/s"] == "50.0"
    assert shown["latency, ms, p99"] == "99.0"
    assert shown["errors, timeout"] == "1"


def test_background_job_omits_empty_fields() -> None:
    job = {
        "id": "job_1",
        "status": "completed",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "model_version": "m@1",
        "created_at": 0,
        "completed_at": 60,
        "cancelled_at": None,
        "response": {"status_code": 200, "body": {}},
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "error": None,
    }
    shown = dict(job_fields(job))
    assert shown["answer"] == "HTTP 200"
    assert shown["tokens"] == "3 in, 4 out"
    assert shown["completed"] == "1970-01-01T00:01:00+00:00"
    assert shown.keys().isdisjoint({"cancelled", "error", "expires"})


def test_failed_background_job_shows_its_error() -> None:
    shown = dict(job_fields({"id": "job_1", "error": {"code": "c", "message": "No."}}))
    assert shown == {"id": "job_1", "error": "No. (c)"}
