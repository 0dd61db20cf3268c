"""Helm, kubeconform and promtool, built from `deploy/helm/tools/go.mod` into the cache folder."""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from cli.stack.data_folder import cache_dir, file_lock
from tests.support.chart import CHART, EXAMPLES, RENDERINGS, ROOT

MODULE: Final = ROOT / "deploy/helm/tools"
PACKAGES: Final = {
    "helm": "helm.sh/helm/v4/cmd/helm",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform",
    "promtool": "github.com/prometheus/prometheus/cmd/promtool",
}
BUILD_S_MAX: Final = 3600
"""A first build on two busy cores. Go keeps what it has compiled, so a repeated one is short."""

RUN_S_MAX: Final = 120


@cache
def tool(name: str) -> Path:
    """Return Helm, kubeconform or promtool."""
    return build(MODULE, PACKAGES[name], name)


def build(module: Path, package: str, name: str, ldflags: str = "") -> Path:
    """Return a program, built once for each content of go.mod and go.sum, checked by go.sum."""
    pinned = (module / "go.mod").read_bytes() + (module / "go.sum").read_bytes() + ldflags.encode()
    root = cache_dir(os.environ)
    folder = root / f"chart-{module.name}-{hashlib.sha256(pinned).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    with file_lock(folder / f"{name}.lock"):
        if not program.exists():
            partial = folder / f".{name}.partial"
            argv = ["go", "build", "-trimpath", "-mod=readonly", "-buildvcs=false"]
            env = {**os.environ, "CGO_ENABLED": "0"}
            subprocess.run(
                [*argv, "-ldflags", ldflags, "-o", str(partial), package],
                cwd=module,
                env=env,
                check=True,
                timeout=BUILD_S_MAX,
            )
            partial.replace(program)
    return program


def run(name: str, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in the repository, without a cluster, a network or files of the user."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"}
    return subprocess.run(
        [str(tool(name)), *map(str, arguments)],
        cwd=ROOT,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )


def values_file(folder: Path, over: Mapping[str, Any]) -> Path:
    """Write values into a file of the folder; return it."""
    file = folder / "over.yaml"
    file.write_text(yaml.safe_dump(dict(over)))
    return file


def template(files: Sequence[Path], *further: str) -> subprocess.CompletedProcess[str]:
    """Render the chart as release `millrace` of namespace `millrace`, hooks included."""
    chosen = [part for file in files for part in ("--values", str(file))]
    where = ("--namespace", "millrace", "--kube-version", "1.35.0")
    return run("helm", "template", "millrace", CHART, *where, *chosen, *further)


def rendering(name: str) -> str:
    """Return a rendering of the examples. Raises ValueError with Helm's message."""
    done = template([EXAMPLES / file for file in RENDERINGS[name]])
    if done.returncode != 0:
        raise ValueError(f"{name}: {done.stderr.strip()}")
    return done.stdout
