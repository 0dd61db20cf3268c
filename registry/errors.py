"""Errors of the model registry. Their messages are for clients and operators."""

from core.errors import Disposition, MillraceError


class InvalidModelError(MillraceError):
    """The model is not valid."""

    code = "model_refused"
    disposition = Disposition.REJECT


class CodeNotAllowedError(InvalidModelError):
    """The model has code, which replicas would run: the request has to allow it."""

    code = "model_code_not_allowed"


class ModelVersionConflictError(InvalidModelError):
    """The version is registered with another pool, engine or endpoints."""

    code = "model_differs"


class ModelNotFoundError(MillraceError):
    """The model does not exist."""

    code = "model_not_found"
    disposition = Disposition.REJECT


class AmbiguousVersionError(MillraceError):
    """The text names no version, or more than one."""

    code = "model_version_ambiguous"
    disposition = Disposition.REJECT


class ModelRetiredError(MillraceError):
    """The version is retired: it must not be loaded any more."""

    code = "model_retired"
    disposition = Disposition.REJECT


class ModelInUseError(MillraceError):
    """The version is in use."""

    code = "model_in_use"
    disposition = Disposition.REJECT


class NameTakenError(MillraceError):
    """The name is in use for something else."""

    code = "model_name_taken"
    disposition = Disposition.REJECT


class AliasLoopError(MillraceError):
    """The alias would refer to itself, or through too many other aliases."""

    code = "alias_refused"
    disposition = Disposition.REJECT


class RevisionMismatchError(MillraceError):
    """The name was changed since it was read: read it again."""

    code = "revision_mismatch"
    disposition = Disposition.REJECT


class ModelKeyNotFoundError(MillraceError):
    """No model key has this id."""

    code = "model_key_not_found"
    disposition = Disposition.REJECT


class ModelKeyRevokedError(MillraceError):
    """The key is revoked, for good."""

    code = "model_key_revoked"
    disposition = Disposition.REJECT
