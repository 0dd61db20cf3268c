"""Goal: docs/metrics.md lists every metric with its type and labels, and none that is gone."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from storage.tenant_wall import TENANT_ROLE

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(millrace_\w+)` \| (\w+) \| ([^|]+) \| [^|]+ \|$", re.M)
ENDING = {"counter": "_total", "info": "_info"}


def registered() -> Iterator[tuple[str, str, str]]:
    inner = [ROOT / "results/webhooks/metrics.py", ROOT / "api/online/metrics.py"]
    inner.append(ROOT / "results/retention/metrics.py")
    for path in sorted([*ROOT.glob("*/metrics.py"), *inner]):
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
    known.add(TENANT_ROLE)  # a name of Postgres'
    for page in (ROOT / "docs").rglob("*.md"):
        text += page.read_text()

    assert set(re.findall(r"\bmillrace_[a-z_]+[a-z]\b", text)) - known == set()


def test_no_metric_is_labelled_with_a_tenant_or_a_job() -> None:
    labels = {label for _, _, labels in registered() for label in re.findall(r"\w+", labels)}

    assert labels & {"tenant", "tenant_id", "job", "job_id", "batch_id", "custom_id"} == set()
