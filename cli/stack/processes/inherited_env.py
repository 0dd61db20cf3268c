"""Which variables of its own environment `millrace up` passes to each child.

A child gets the settings of its role and what a program needs from its system. No role sees the
secrets of another, or those of other programs that the operator's shell happens to hold.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

PASSED_ON: Final = "MILLRACE_UP_PASS_ENV"
"""The variable with further names for every child, separated by commas; `*` ends a name."""

SYSTEM: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "PWD"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TERM"),
    *("TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_*", "GLIBC_TUNABLES"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Variables that every child gets."""

JAVA: Final = (*SYSTEM, "JAVA_*", "JDK_JAVA_OPTIONS")

_LOG: Final = ("MILLRACE_KAFKA_*",)
_DATABASE: Final = ("MILLRACE_DATABASE_*", "PGSSL*", "PGPASSFILE", "PGSERVICE*")
_OBJECTS: Final = ("MILLRACE_OBJECTS_*", "MILLRACE_S3_*", "AWS_*", "BOTO_*")
_BODIES: Final = "MILLRACE_BODY_*"
_ENGINE: Final = (
    *("MILLRACE_GPU_*", "MILLRACE_ENGINE_*", "MILLRACE_HOST_ID"),
    *("VLLM_*", "CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "HIP_*", "ROCR_*", "ROCM_*"),
    *("HF_*", "TRANSFORMERS_*", "TOKENIZERS_*", "TORCH*", "PYTORCH_*", "TRITON_*"),
    *("OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "NUMEXPR_*", "CC", "CXX"),
)

OF_ROLE: Final[Mapping[str, tuple[str, ...]]] = {
    "api": (
        *(*_LOG, *_DATABASE, *_OBJECTS),
        *("MILLRACE_API_*", "MILLRACE_ONLINE_*", "MILLRACE_WEBHOOKS_*", _BODIES),
    ),
    "intake": (*_LOG, *_DATABASE, *_OBJECTS, "MILLRACE_INTAKE_*", _BODIES),
    "batcher": (*_LOG, *_DATABASE, "MILLRACE_BATCHER_*"),
    "gpu-consumer": (*_LOG, *_OBJECTS, *_ENGINE, _BODIES),
    "results-writer": (*_LOG, *_DATABASE, "MILLRACE_WRITER_*"),
    "finaliser": (*_DATABASE, *_OBJECTS, "MILLRACE_FINALISER_*", "MILLRACE_RETENTION_*"),
    "webhooks": (*_LOG, *_DATABASE, "MILLRACE_WEBHOOKS_*"),
    "autoscaler": (
        *(*_LOG, "MILLRACE_AUTOSCALER_*", "MILLRACE_KUBERNETES_*", "MILLRACE_KEDA_*"),
        "KUBERNETES_*",
    ),
}
"""Names that a role gets in addition to `SYSTEM`."""


def inherited_env(names: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `env` that match one of `names`, or one that `env` passes on."""
    further = (name.strip() for name in env.get(PASSED_ON, "").split(","))
    patterns = [*names, *(name for name in further if name)]
    return {
        name: value
        for name, value in env.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def role_env(role: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return those of `env` that are of the role: settings that were computed for all roles."""
    return inherited_env((*SYSTEM, *OF_ROLE[role]), env)
