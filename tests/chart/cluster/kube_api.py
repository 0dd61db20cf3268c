"""A client of the API server for tests: plain REST, as one user."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
TIMEOUT_S: Final = 60.0
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODES: Final = "/api/v1/nodes"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
POLICIES: Final = f"{ADMISSION}/validatingadmissionpolicies"
POLICY_BINDINGS: Final = f"{ADMISSION}/validatingadmissionpolicybindings"

_GROUPS: Final[Mapping[str, str]] = {
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "scaledobjects": "/apis/keda.sh/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}


def path_of(namespace: str, resource: str, name: str = "", subresource: str = "") -> str:
    """Return the path of objects of a namespace, of one of them, or of its subresource."""
    parts = [_GROUPS.get(resource, "/api/v1"), "namespaces", namespace, resource, name, subresource]
    return "/".join(part for part in parts if part)


class KubeApi:
    """Calls as one user. Each method but `status` raises AssertionError with the server's words."""

    def __init__(
        self,
        url: str,
        ca_file: Path,
        *,
        token: str | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """`certificate` has its key beside it."""
        self.url, self.ca_file = url, ca_file
        self.tls = ssl.create_default_context(cafile=ca_file)
        if certificate is not None:
            self.tls.load_cert_chain(*certificate)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=url, verify=self.tls, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "",
        **params: str | int,
    ) -> httpx.Response:
        """Return an answer of any status. A PATCH without a type of content is a merge."""
        kind = content_type or (MERGE_PATCH if method == "PATCH" else "application/json")
        return self._http.request(
            method, path, json=body, params=params, headers={"content-type": kind}
        )

    def status(self, method: str, path: str, body: object = None) -> int:
        """Return the status of an answer."""
        return self.send(method, path, body).status_code

    def call(self, method: str, path: str, body: object = None, **params: str | int) -> Any:
        """Return what the server answers with success."""
        answer = self.send(method, path, body, content_type="", **params)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:2_000]}"
        return answer.json()

    def get(self, path: str) -> dict[str, Any]:
        """Return an object."""
        found: dict[str, Any] = self.call("GET", path)
        return found

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object; None: there is none."""
        answer = self.send("GET", path)
        if answer.status_code == 404:
            return None
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text[:2_000]}"
        found: dict[str, Any] = answer.json()
        return found

    def items(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a list."""
        found: list[dict[str, Any]] = self.call("GET", path, labelSelector=selector)["items"]
        return found

    def names(self, path: str, selector: str = "") -> set[str]:
        """Return the names of the objects of a list."""
        return {one["metadata"]["name"] for one in self.items(path, selector)}

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create an object."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Merge into an object."""
        return self.call("PATCH", path, body)

    def token(self, namespace: str, account: str) -> str:
        """Return a new token of a service account, as the kubelet asks for it."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3_600},
        }
        path = path_of(namespace, "serviceaccounts", account, "token")
        token: str = self.create(path, request)["status"]["token"]
        return token

    def as_account(self, namespace: str, account: str) -> "KubeApi":
        """Return a client with the token of a service account. The caller closes it."""
        return KubeApi(self.url, self.ca_file, token=self.token(namespace, account))
