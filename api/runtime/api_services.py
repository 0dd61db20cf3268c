"""The services that all routes share, created at the start of the process."""

import signal
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request

from api.auth.failed_attempts import FailedAttempts
from api.auth.key_cache import KeyCache
from api.online.memory_limits import ResponseMemoryLimit
from api.runtime.database import Database
from api.runtime.lost_commits import DatabaseCommitWatch
from api.runtime.object_threads import ObjectThreadPool
from api.runtime.tenant_slots import TenantSlots
from api.settings import ApiSettings
from core.errors import MillraceError
from core.runtime.supervised_tasks import OnFailure
from storage.objects.object_store import ObjectStore
from tenancy.api_keys import Principal
from tenancy.operator_keys import OperatorPrincipal

_REDRIVES_MAX: Final = 4
"""Redrives at once: each writes a file in one of the threads for the object store."""


def end_process(_failure: MillraceError) -> None:
    """Stop this process like its supervisor does, with SIGTERM."""
    signal.raise_signal(signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Services:
    """Settings and clients of one API process."""

    settings: ApiSettings
    database: Database
    objects: ObjectStore
    object_threads: ObjectThreadPool  # the default executor of the event loop
    keys: KeyCache[Principal]
    operator_keys: KeyCache[OperatorPrincipal]
    failed_attempts: FailedAttempts
    uploads: TenantSlots
    response_limit: ResponseMemoryLimit
    commits: DatabaseCommitWatch
    on_failure: OnFailure = end_process  # of a background task
    redrives: TenantSlots = field(default_factory=lambda: TenantSlots("redrives", _REDRIVES_MAX))


def services_of(request: Request) -> Services:
    """Return the services of the application that serves `request`."""
    services: Services = request.app.state.services
    return services
