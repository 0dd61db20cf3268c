"""A Kubernetes control plane on this machine: etcd, API server, controllers, scheduler, and kwok.

All listen on 127.0.0.1, with certificates of their own and RBAC. kwok plays the kubelets: pods are
placed, become ready and end, and no container runs.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import yaml  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.asymmetric import ec

from cli.stack.processes.child import Child, ChildProcess, spawn
from tests.chart.cluster.certificates import Authority, write_key
from tests.chart.cluster.kube_api import KubeApi, path_of
from tests.chart.cluster.programs import program, stages
from tests.support.ports import free_port
from tests.support.until import until

START_S: Final = 180.0
STOP_S: Final = 10.0
_TAIL_CHARS: Final = 4_000


@dataclass(frozen=True)
class ControlPlane:
    """A control plane that runs."""

    api: KubeApi  # of an administrator
    kubeconfig: Path  # of the same
    server: ChildProcess

    @contextlib.contextmanager
    def stopped_server(self) -> Iterator[None]:
        """Let the API server hang: it keeps its connections and answers nothing."""
        self.server.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.server.send(signal.SIGCONT)


class _Starter:
    """Starts programs; all of them end with the stack, the last one first."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def start(self, name: str, **flags: str | int | Path) -> ChildProcess:
        options = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        child = Child(
            name=name,
            argv=(str(program(name)), *options),
            env={"PATH": os.environ["PATH"], "HOME": str(self._folder)},
            inherits=(),
            cwd=str(self._folder),
        )
        process = spawn(child, self._folder)
        self._stack.callback(process.stop, STOP_S)
        return process

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-_TAIL_CHARS:]

    def wait(self, name: str, process: ChildProcess, client: httpx.Client, path: str) -> None:
        """Wait until a server answers 200."""

        def is_ready() -> bool:
            assert not process.has_ended(), f"{name} has ended:\n{self.log(name)}"
            with contextlib.suppress(httpx.TransportError):
                return client.get(path).status_code == 200
            return False

        until(is_ready, timeout_s=START_S)


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Start a control plane with the folder for its data, keys and logs; end it."""
    with contextlib.ExitStack() as stack:
        starter = _Starter(folder, stack)
        authority = Authority(folder)
        etcd_url = _start_etcd(starter, folder)
        server, url = _start_server(starter, folder, authority, etcd_url)
        certificate = authority.client("admin", "system:masters")
        api = stack.enter_context(KubeApi(url, authority.file, certificate=certificate))
        admin = _kubeconfig(folder / "admin.conf", url, authority.file, certificate)
        with httpx.Client(verify=api.tls, base_url=url, trust_env=False) as client:
            starter.wait("kube-apiserver", server, client, "/readyz")
        starter.start(
            "kube-controller-manager",
            kubeconfig=_of_user(folder, url, authority, "system:kube-controller-manager"),
            service_account_private_key_file=folder / "accounts.key",
            root_ca_file=authority.file,
            use_service_account_credentials="true",
            leader_elect="false",
            secure_port=0,
        )
        starter.start(
            "kube-scheduler",
            kubeconfig=_of_user(folder, url, authority, "system:kube-scheduler"),
            leader_elect="false",
            secure_port=0,
        )
        (folder / "stages.yaml").write_text(stages())
        starter.start(
            "kwok",
            kubeconfig=admin,
            config=folder / "stages.yaml",
            manage_all_nodes="true",
            node_lease_duration_seconds=40,
            node_ip="127.0.0.1",
        )
        # The controllers make it, and the API server admits no pod before.
        until(lambda: api.find(path_of("default", "serviceaccounts", "default")), timeout_s=START_S)
        yield ControlPlane(api, admin, server)


def _start_etcd(starter: _Starter, folder: Path) -> str:
    url, peers = (f"http://127.0.0.1:{free_port(folder)}" for _ in range(2))
    etcd = starter.start(
        "etcd",
        data_dir=folder / "etcd",
        listen_client_urls=url,
        advertise_client_urls=url,
        listen_peer_urls=peers,
        initial_advertise_peer_urls=peers,
        initial_cluster=f"default={peers}",
        unsafe_no_fsync="true",
    )
    with httpx.Client(base_url=url, trust_env=False) as client:
        starter.wait("etcd", etcd, client, "/health")
    return url


def _start_server(
    starter: _Starter, folder: Path, authority: Authority, etcd_url: str
) -> tuple[ChildProcess, str]:
    port = free_port(folder)
    certificate, key = authority.server("kube-apiserver")
    accounts = write_key(folder / "accounts.key", ec.generate_private_key(ec.SECP256R1()))
    server = starter.start(
        "kube-apiserver",
        etcd_servers=etcd_url,
        bind_address="127.0.0.1",
        advertise_address="127.0.0.1",
        endpoint_reconciler_type="none",
        secure_port=port,
        tls_cert_file=certificate,
        tls_private_key_file=key,
        client_ca_file=authority.file,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=accounts,
        service_account_signing_key_file=accounts,
        service_cluster_ip_range="10.96.0.0/16",
    )
    return server, f"https://127.0.0.1:{port}"


def _of_user(folder: Path, url: str, authority: Authority, user: str) -> Path:
    file = folder / f"{user.replace(':', '-')}.conf"
    return _kubeconfig(file, url, authority.file, authority.client(user))


def _kubeconfig(file: Path, url: str, ca_file: Path, certificate: tuple[Path, Path]) -> Path:
    """Write how to reach the API server as one user; return the file."""
    name = "cluster"
    cluster = {"server": url, "certificate-authority": str(ca_file)}
    user = {"client-certificate": str(certificate[0]), "client-key": str(certificate[1])}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
    }
    file.write_text(yaml.safe_dump(document))
    return file
