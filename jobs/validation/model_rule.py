"""The models that the requests of a job may name. Pure.

The names of a job mean versions of one pool with one base version: a model, its adapters, their
aliases and pinned forms. So one engine can run all items of the job, and one window emits them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from core.limits import ERROR_LINES_MAX
from core.shown_versions import is_digest
from jobs.input.line_checks import ErrorCode, LineError
from registry.model_version import ModelVersion

FindModel: TypeAlias = Callable[[str], ModelVersion | None]
"""Returns the version that a name meant when the job was created."""

NAMES_MAX: Final = 100
"""Names in the requests of one job."""

_PARAM: Final = "body.model"
_MESSAGES: Final = {
    ErrorCode.MODEL_NOT_FOUND: "The model does not exist.",
    ErrorCode.MODEL_RETIRED: "The version of the model is retired.",
    ErrorCode.MODEL_MISMATCH: "All requests of a batch must name the same model, "
    "or its adapters and aliases.",
    ErrorCode.SEVERAL_MODELS_OFF: "The requests of a batch must name one model, and no adapter: "
    "this installation is being upgraded.",
    ErrorCode.TOO_MANY_MODELS: f"The requests of a batch may name at most {NAMES_MAX} models.",
    ErrorCode.ENDPOINT_NOT_SUPPORTED: "The model does not serve the endpoint of the batch.",
}


@dataclass(frozen=True, slots=True)
class PinnedModels:
    """What a job with a verdict has pinned: its names, and what further names must mean."""

    versions: Mapping[str, str]  # by name
    pool: str
    base_version: str

    @property
    def base(self) -> "_Base":
        """What further names must mean: nothing else than now, for the text of a legacy version."""
        return self.pool, self.base_version, None if is_digest(self.base_version) else ""


_Base: TypeAlias = tuple[str, str, str | None]
"""Pool and base version; and the model's name, if the base version does not tell the model."""


def _base_of(version: ModelVersion) -> _Base:
    base_version = version.base_version or version.version
    return version.pool, base_version, None if is_digest(base_version) else version.name


class ModelRule:
    """Checks the names of a file line by line, and collects the new ones."""

    def __init__(
        self,
        endpoint: str,
        find_model: FindModel,
        pinned: PinnedModels | None = None,
        *,
        allows_several: bool = True,
    ) -> None:
        """`pinned` are those of the job to which the file is appended.

        Without `allows_several` no new name may be an adapter, or come to another name.
        """
        self._allows_several = allows_several
        self._endpoint, self._find_model = endpoint, find_model
        self._versions = dict(pinned.versions) if pinned else {}  # by pinned and new name
        self._expected = pinned.base if pinned else None
        self._refused: dict[str, ErrorCode] = {}
        self.names: dict[str, ModelVersion] = {}
        """The new names and their versions, in the order of their first lines."""

    @property
    def version(self) -> ModelVersion | None:
        """The version of the first new name."""
        return next(iter(self.names.values()), None)

    def error(self, name: str, line: int) -> LineError | None:
        """Return the error of a model name, or None.

        An unknown model does not become the job's model: a mistake in one line must not make the
        other lines invalid. That a model does not serve the endpoint is reported once.
        """
        if name in self._versions:
            return None
        code = self._refused.get(name)
        if code is None and len(self._refused) >= ERROR_LINES_MAX:
            # Neither looked up nor kept: a file may name as many models as it has lines.
            code = ErrorCode.MODEL_MISMATCH if self._expected else ErrorCode.MODEL_NOT_FOUND
        elif code is None:
            code = self._check_new(name)
        return None if code is None else LineError(code, _MESSAGES[code], _PARAM, line)

    def prefix_salt(self, name: str) -> int:
        """Return a number that differs between versions; 0 for the first: engines share no prefix
        between adapters, and one between the names of a version.
        """
        version = self._versions.get(name)
        is_first = version == next(iter(self._versions.values()), version)
        return 0 if is_first else hash(version)

    def _check_new(self, name: str) -> ErrorCode | None:
        """Look a name up, once, and keep what it is."""
        version = self._find_model(name)
        code = None
        if version is None:
            code = ErrorCode.MODEL_NOT_FOUND
        elif version.retired_at is not None:
            code = ErrorCode.MODEL_RETIRED
        elif self._expected not in {None, _base_of(version)}:
            code = ErrorCode.MODEL_MISMATCH
        elif not self._allows_several and (version.base_version or self._versions):
            code = ErrorCode.SEVERAL_MODELS_OFF
        elif len(self._versions) >= NAMES_MAX:
            code = ErrorCode.TOO_MANY_MODELS
        if version is None or code is not None:
            self._refused[name] = code or ErrorCode.MODEL_NOT_FOUND
            return code
        self._expected = _base_of(version)
        self.names[name] = version
        self._versions[name] = version.version
        return None if self._endpoint in version.endpoints else ErrorCode.ENDPOINT_NOT_SUPPORTED
