"""etcd, a Kubernetes control plane and kwok, built from `deploy/helm/cluster/go.mod`."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests.chart.tools import build
from tests.support.chart import ROOT

MODULE: Final = ROOT / "deploy/helm/cluster"
PACKAGES: Final = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
STAGES: Final = (
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
)
"""What kwok does with pods and nodes: those of jobs complete at once, all others run."""


@cache
def kubernetes_version() -> str:
    """Return the version of Kubernetes, as `1.37.2`."""
    found = re.search(r"^\tk8s\.io/kubernetes v(\S+)", (MODULE / "go.mod").read_text(), re.M)
    if found is None:
        raise ValueError("go.mod names no version of Kubernetes")
    return found[1]


@cache
def program(name: str) -> Path:
    """Return a program that knows its version, as those of a release of Kubernetes do."""
    version = kubernetes_version()
    major, minor, _ = version.split(".")
    variables = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    flags = [f"-X k8s.io/component-base/version.{name}={text}" for name, text in variables.items()]
    return build(MODULE, PACKAGES[name], name, " ".join(["-s", "-w", *flags]))


def stages() -> str:
    """Return the stages of kwok's own module."""
    argv = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]
    done = subprocess.run(argv, cwd=MODULE, capture_output=True, text=True, check=True, timeout=600)
    folder = Path(done.stdout.strip()) / "kustomize/stage"
    return "\n---\n".join((folder / name).read_text() for name in STAGES)
