"""Where the API server of Kubernetes is, and how the autoscaler authenticates to it."""

from pathlib import Path
from typing import ClassVar

from core.settings import Settings

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the files of a pod's service account."""


class KubernetesSettings(Settings):
    """Connection to the API server. In a pod no setting is needed."""

    env_prefix: ClassVar[str] = "MILLRACE_KUBERNETES_"

    url: str | None = None
    token_file: Path = ACCOUNT_FOLDER / "token"
    ca_file: Path = ACCOUNT_FOLDER / "ca.crt"
    namespace_file: Path = ACCOUNT_FOLDER / "namespace"
