"""The memory plan of a stored version, from its configuration and the headers of its weights."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from registry.errors import InvalidModelError
from registry.manifests.manifest import Manifest
from registry.memory_plan.memory_plan import MemoryPlan
from registry.publishing.stored_headers import copy_headers
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectReader

PlanFolder: TypeAlias = Callable[[Path, Mapping[str, Any]], MemoryPlan]
"""Returns the plan of a folder with the options of a version."""


def plan_stored(objects: ObjectReader, manifest: Manifest, plan_folder: PlanFolder) -> MemoryPlan:
    """Return the plan of a version.

    Raises InvalidModelError when the store lacks one of its files, and what `plan_folder` raises.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-plan-") as folder:
        try:
            copy_headers(objects, manifest, Path(folder))
        except ObjectNotFoundError:
            raise InvalidModelError("The object store lacks files of the version.") from None
        return plan_folder(Path(folder), manifest.engine_options)
