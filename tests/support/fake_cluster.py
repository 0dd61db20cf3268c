"""An API server that knows its version and some Deployments: what `lookup` of Helm reads."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

_DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/millrace/deployments"


def deployment(
    name: str, replicas: int, managers: Mapping[tuple[str, str], bool]
) -> dict[str, Any]:
    """Return a Deployment. `managers`: (manager, operation) and whether it owns `replicas`."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": "millrace",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": "millrace",
                "meta.helm.sh/release-namespace": "millrace",
            },
            "managedFields": [
                {
                    "manager": manager,
                    "operation": operation,
                    "apiVersion": "apps/v1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:replicas": {}} if is_owner else {"f:template": {}}},
                }
                for (manager, operation), is_owner in managers.items()
            ],
        },
        "spec": {"replicas": replicas},
    }


@contextmanager
def cluster(
    folder: Path, kinds: Iterable[tuple[str, str]], deployments: Iterable[dict[str, Any]]
) -> Iterator[Path]:
    """Yield the kubeconfig of a server with these Deployments of the namespace `millrace`.

    `kinds` are the versions and kinds of objects that Helm renders: it looks up where they belong.
    """
    answers = _answers(kinds, deployments)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            found = answer or {
                "kind": "Status",
                "apiVersion": "v1",
                "reason": "NotFound",
                "code": 404,
            }
            body = json.dumps(found).encode()
            self.send_response(200 if answer else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = folder / "kubeconfig"
    config.write_text(yaml.safe_dump(_kubeconfig(server.server_port)))
    try:
        yield config
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _group_version(version: str) -> dict[str, str]:
    return {"groupVersion": version, "version": version.partition("/")[2]}


def _answers(
    kinds: Iterable[tuple[str, str]], deployments: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Return the answer to each path."""
    versions: dict[str, list[dict[str, Any]]] = {"apps/v1": []}
    for version, kind in sorted(set(kinds)):
        resource = {
            "name": f"{kind.lower()}s",
            "kind": kind,
            "namespaced": kind != "PriorityClass",
            "verbs": ["get", "list"],
        }
        versions.setdefault(version, []).append(resource)
    groups = [
        {"name": version.partition("/")[0], "versions": [_group_version(version)]}
        for version in versions
        if version != "v1"
    ]
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version, resources in versions.items():
        answers[f"/api/{version}" if version == "v1" else f"/apis/{version}"] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": resources,
        }
    for one in deployments:
        answers[f"{_DEPLOYMENTS}/{one['metadata']['name']}"] = one
    return answers


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {}}],
    }
