"""Why a replica does not load a model."""

from enum import StrEnum

from core.errors import MillraceError


class RefusalReason(StrEnum):
    """The label `reason` of `millrace_model_refused_total`."""

    UNKNOWN = "unknown"  # the registry has no such version under the model's name
    RETIRED = "retired"
    UNVERIFIED = "unverified"  # a folder without a version, after the day that allows it
    MANIFEST = "manifest"  # missing, altered or not valid
    UNSIGNED = "unsigned"
    UNTRUSTED_KEY = "untrusted_key"
    REVOKED_KEY = "revoked_key"
    SIGNATURE = "signature"  # it does not verify, or signs something else
    FILE = "file"  # missing, truncated or altered
    CONFIG = "config"  # a configuration names code, a model or a file outside of the version
    MEMORY = "memory"  # it does not fit the engine's memory
    OPTIONS = "options"  # the engine refuses its options or settings, or does not start
    WARM_UP = "warm_up"  # the engine did not answer the requests that warm it up
    CACHE = "cache"  # it does not fit the weight cache, or the cache cannot be used


class ModelRefusedError(MillraceError):
    """The replica does not load this model."""

    code = "model_refused"

    def __init__(self, reason: RefusalReason, message: str, **facts: object) -> None:
        """The message names the file, key or version and what is wrong with it."""
        super().__init__(message, reason=reason.value, **facts)
        self.reason = reason


class StagingStoppedError(MillraceError):
    """The process stops before the model is staged."""

    code = "staging_stopped"
