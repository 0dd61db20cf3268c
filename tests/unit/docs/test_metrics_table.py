"""Goal: docs/metrics.md lists every metric with its type and labels, and none that is gone."""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import getsource
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from batcher.policy.batch_closing import BatchCloseReason
from core.overload.shedding import ShedClass
from gpu_consumers.inflight.online_call import CallAbortReason
from gpu_consumers.weights.errors import RefusalReason
from jobs.store.idempotency import KeyScope
from migrations.role_rights import LOGINS
from registry.models import ENDPOINTS
from storage.postgres.tenant_isolation import TENANT_ROLE
from topics.tail_readers.job_controls import obsolete_reason

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(millrace_\w+)` \| (\w+) \| ([^|]+) \| [^|]+ \|$", re.M)
ENDING = {"counter": "_total", "info": "_info"}


def registered() -> Iterator[tuple[str, str, str]]:
    rooms = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]
    for path in sorted(path for room in rooms for path in room.rglob("metrics.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for value in vars(import_module(name)).values():
            if isinstance(value, MetricWrapperBase):
                (metric,) = value.describe()
                labels = ", ".join(f"`{label}`" for label in value._labelnames) or "–"
                yield metric.name + ENDING.get(metric.type, ""), metric.type, labels


def test_every_metric_is_listed_once() -> None:
    rows = ROW.findall((ROOT / "docs/metrics.md").read_text())

    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(registered())


def test_metrics_are_declared_in_modules_of_that_name_alone() -> None:
    declares = re.compile(
        r"^from prometheus_client import .*\b(Counter|Gauge|Histogram|Info|Summary)\b", re.M
    )
    rooms = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]
    found = {
        path.relative_to(ROOT).as_posix()
        for room in rooms
        for path in room.rglob("*.py")
        if path.name != "metrics.py" and declares.search(path.read_text())
    }

    assert found == set()


def test_every_expression_uses_metrics_that_exist() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    known = {name for name, _, _ in registered()}
    known |= {f"{name}_bucket" for name, kind, _ in registered() if kind == "histogram"}
    known |= {TENANT_ROLE, *(f"millrace_{name}" for name in LOGINS)}  # names of Postgres'
    for page in (ROOT / "docs").rglob("*.md"):
        text += page.read_text()

    assert set(re.findall(r"\bmillrace_[a-z_]+[a-z]\b", text)) - known == set()


def values_of(label: str, metric: str = "") -> set[str]:
    """Return what the table of values gives for a label, of one metric where it says so."""
    of = f" of `{metric}`" if metric else ""
    text = (ROOT / "docs/metrics.md").read_text()
    (row,) = re.findall(rf"^\| `{label}`{of} \| (.+) \|$", text, re.M)
    return set(re.findall(r"`([^`]+)`", row))


def calls_of(pattern: str, *rooms: str) -> set[str]:
    """Return what a pattern finds in the code of rooms."""
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    return {found for path in paths for found in re.findall(pattern, path.read_text())}


def test_values_of_labels_are_those_of_the_code() -> None:
    over = set(re.findall(r'return "(\w+)"', getsource(obsolete_reason)))
    shed = calls_of(r'\bTenantSlots\(\s*"(\w+)"', "api")
    failed = calls_of(r'\brefusal\("(\w+)"', "api") | calls_of(r'FAILURES\.labels\("(\w+)"', "api")
    isolated = calls_of(r'BATCHES_ISOLATED\.labels\("(\w+)"', "gpu_consumers")
    charged = calls_of(r'ITEMS_CHARGED\.labels\("(\w+)"', "gpu_consumers")
    dropped = over | {"gone"} | calls_of(r'ITEMS_DROPPED\.labels\("(\w+)"', "batcher")

    assert values_of("reason", "millrace_api_shed_total") == shed
    assert values_of("reason", "millrace_api_authentication_failures_total") == failed
    assert values_of("reason", "millrace_batcher_dropped_total") == dropped
    assert values_of("reason", "millrace_items_skipped_total") == over
    assert values_of("reason", "millrace_batches_isolated_total") == isolated
    assert values_of("reason", "millrace_items_charged_total") == charged
    assert values_of("reason", "millrace_calls_aborted_total") == {
        cut.value for cut in CallAbortReason
    }
    assert values_of("reason", "millrace_model_refused_total") == {
        reason.value for reason in RefusalReason
    }
    assert values_of("reason", "millrace_batch_close_total") == {
        why.value for why in BatchCloseReason
    }
    assert values_of("scope") == {scope.value for scope in KeyScope}
    assert values_of("class") == {shed_class.label for shed_class in ShedClass}
    assert values_of("endpoint") == set(ENDPOINTS)
    assert values_of("result", "millrace_online_cache_total") == {"hit", "miss"}


def test_no_metric_is_labelled_with_a_tenant_or_a_job() -> None:
    labels = {label for _, _, labels in registered() for label in re.findall(r"\w+", labels)}

    assert labels & {"tenant", "tenant_id", "job", "job_id", "batch_id", "custom_id"} == set()
