"""Every route, with every parameter that can name an object of a tenant.

In a path or a body, `{batch}` is replaced by an id under test, `{own.batch}` by one of the
caller's.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.models import ENDPOINTS

MODEL_PATHS = ("/v1/admin/model", "/v1/admin/unverified_models", "/v1/admin/aliases")
"""Starts of the routes that `test_model_routes.py` is about."""

METHODS = {"/v1/admin/aliases/{alias}": "PUT"}
"""Routes whose body does not come with a POST."""

NEW_ENDPOINT = {"name": "n", "url": "https://8.8.8.8/", "event_types": ["batch.completed"]}
CALL = {"model": "{model}", "messages": [], "input": "x", "prompt": "x"}


@dataclass(frozen=True)
class Ask:
    """One request with at least one id under test, or with none where a route takes none."""

    path: str
    body: Mapping[str, Any] | None = None

    def filled(self, ids: Mapping[str, str]) -> tuple[str, Any]:
        """Return path and body with these ids in their places."""
        return _filled(self.path, ids), _filled(self.body, ids)

    @property
    def names(self) -> set[str]:
        """The places under test, without those of the asker's own ids."""
        return {name for name in _places((self.path, self.body)) if not name.startswith("own.")}


def new_batch(input_file_id: str) -> dict[str, Any]:
    return {
        "input_file_id": input_file_id,
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    }


BATCH = "/v1/batches/{batch}"
ENDPOINT = "/v1/webhook_endpoints/{endpoint}"
OWN_ENDPOINT = "/v1/webhook_endpoints/{own.endpoint}"

# What ends something stands last, so that an owner can ask everything in this order.
ASKS: dict[tuple[str, str], list[Ask]] = {
    ("GET", "/healthz"): [],
    ("GET", "/readyz"): [],
    ("GET", "/metrics"): [],
    ("GET", "/v1/files"): [Ask("/v1/files?after={file}"), Ask("/v1/files?after={batch}")],
    ("GET", "/v1/files/{file_id}"): [Ask("/v1/files/{file}"), Ask("/v1/files/{output}")],
    ("GET", "/v1/files/{file_id}/content"): [
        Ask("/v1/files/{file}/content"),
        Ask("/v1/files/{output}/content"),
    ],
    ("GET", "/v1/batches"): [Ask("/v1/batches?after={batch}"), Ask("/v1/batches?after={job}")],
    ("GET", "/v1/batches/{batch_id}"): [Ask(BATCH), Ask("/v1/batches/{job}")],
    ("GET", "/v1/batches/{batch_id}/callback"): [Ask("/v1/batches/{called}/callback")],
    ("GET", "/v1/batches/{batch_id}/items"): [
        Ask(f"{BATCH}/items"),
        Ask(f"{BATCH}/items?status=failed"),
        Ask("/v1/batches/{own.batch}/items?after={item}"),
    ],
    ("GET", "/v1/batches/{batch_id}/items/{custom_id}"): [
        Ask(f"{BATCH}/items/request-0"),
        Ask(f"{BATCH}/items/{{item}}"),
        Ask("/v1/batches/{own.batch}/items/{item}"),
    ],
    ("GET", "/v1/batches/{batch_id}/results"): [Ask(f"{BATCH}/results")],
    ("GET", "/v1/batches/{batch_id}/audit"): [Ask(f"{BATCH}/audit")],
    ("GET", "/v1/batches/{batch_id}/provenance"): [Ask(f"{BATCH}/provenance")],
    ("GET", "/v1/dead_letters"): [
        Ask("/v1/dead_letters?batch={batch}"),
        Ask("/v1/dead_letters?after={letter}"),
    ],
    ("GET", "/v1/dead_letters/{letter_id}"): [Ask("/v1/dead_letters/{letter}")],
    ("GET", "/v1/audit_log"): [Ask("/v1/audit_log?after={entry}")],
    ("GET", "/v1/jobs/{job_id}"): [Ask("/v1/jobs/{job}")],
    ("GET", "/v1/models"): [],
    ("GET", "/v1/models/{name}"): [],  # models belong to nobody
    ("GET", "/v1/webhook_event_types"): [],
    ("GET", "/v1/webhook_endpoints"): [Ask("/v1/webhook_endpoints?after={endpoint}")],
    ("GET", "/v1/webhook_endpoints/{endpoint_id}"): [
        Ask(ENDPOINT),
        Ask("/v1/webhook_endpoints/{callback}"),
    ],
    ("GET", "/v1/webhook_endpoints/{endpoint_id}/deliveries"): [
        Ask(f"{ENDPOINT}/deliveries"),
        Ask(f"{OWN_ENDPOINT}/deliveries?after={{message}}"),
    ],
    ("POST", "/v1/files"): [],
    ("POST", "/v1/batches"): [Ask("/v1/batches", new_batch("{file}"))],
    ("POST", "/v1/batches/{batch_id}"): [Ask(BATCH, {"priority": 9})],
    ("POST", "/v1/batches/{batch_id}/append"): [
        Ask(f"{BATCH}/append", {"input_file_id": "{own.file}"}),
        Ask("/v1/batches/{own.batch}/append", {"input_file_id": "{file}"}),
    ],
    ("POST", "/v1/batches/{batch_id}/pause"): [Ask(f"{BATCH}/pause")],
    ("POST", "/v1/batches/{batch_id}/resume"): [Ask(f"{BATCH}/resume")],
    ("POST", "/v1/dead_letters/redrive"): [
        Ask("/v1/dead_letters/redrive", {"batch": "{batch}"}),
        Ask("/v1/dead_letters/redrive", {"ids": ["{letter}"]}),
    ],
    ("POST", "/v1/webhook_endpoints"): [],
    ("POST", "/v1/webhook_endpoints/{endpoint_id}"): [Ask(ENDPOINT, {"name": "stolen"})],
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/rotate_secret"): [
        Ask(f"{ENDPOINT}/rotate_secret", {})
    ],
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/replay"): [
        Ask(f"{ENDPOINT}/replay", {"since": 0}),
        Ask(f"{OWN_ENDPOINT}/replay", {"message_id": "{message}"}),
    ],
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/test"): [
        Ask(f"{ENDPOINT}/test", {"event_type": "batch.completed"})
    ],
    ("POST", "/v1/webhook_callback_secret/rotate"): [],
    **{("POST", path): [] for path in ENDPOINTS},
    ("POST", "/v1/batches/{batch_id}/seal"): [Ask(f"{BATCH}/seal")],
    ("POST", "/v1/batches/{batch_id}/cancel"): [Ask(f"{BATCH}/cancel")],
    ("DELETE", "/v1/jobs/{job_id}"): [Ask("/v1/jobs/{job}")],
    ("DELETE", "/v1/batches/{batch_id}"): [Ask("/v1/batches/{ended}")],
    ("DELETE", "/v1/webhook_endpoints/{endpoint_id}"): [Ask(ENDPOINT)],
    ("DELETE", "/v1/files/{file_id}"): [Ask("/v1/files/{file}")],
}

# Routes of operators. Their ids are under test for an operator; a tenant's key names nothing there.
OPERATOR_ASKS: dict[tuple[str, str], list[Ask]] = {
    ("GET", "/v1/admin/tenants"): [Ask("/v1/admin/tenants?after={tenant}")],
    ("GET", "/v1/admin/tenants/{tenant_id}"): [Ask("/v1/admin/tenants/{tenant}")],
    ("GET", "/v1/admin/keys"): [
        Ask("/v1/admin/keys?after={key}"),
        Ask("/v1/admin/keys?tenant={tenant}"),
    ],
    ("GET", "/v1/admin/models"): [],
    ("GET", "/v1/admin/models/{name}"): [Ask("/v1/admin/models/{version}")],
    ("GET", "/v1/admin/model_diff"): [
        Ask("/v1/admin/model_diff?old={version}&new={version}"),
        Ask("/v1/admin/model_diff?new={version}&old={version}"),
    ],
    ("GET", "/v1/admin/model_check"): [Ask("/v1/admin/model_check?model={version}")],
    ("GET", "/v1/admin/model_plan"): [Ask("/v1/admin/model_plan?model={version}")],
    ("GET", "/v1/admin/aliases"): [],
    ("GET", "/v1/admin/aliases/{alias}"): [Ask("/v1/admin/aliases/{alias}")],
    ("GET", "/v1/admin/model_keys"): [],
    ("GET", "/v1/admin/pools"): [],
    ("GET", "/v1/admin/pools/{pool}/tenants"): [],
    ("GET", "/v1/admin/replicas"): [],
    ("GET", "/v1/admin/topics"): [],
    ("GET", "/v1/admin/audit_log"): [Ask("/v1/admin/audit_log?after={operation}")],
    ("POST", "/v1/admin/tenants"): [],
    ("POST", "/v1/admin/tenants/{tenant_id}"): [
        Ask("/v1/admin/tenants/{tenant}", {"call_timeout_ms": 60_000})
    ],
    ("POST", "/v1/admin/tenants/{tenant_id}/keys"): [Ask("/v1/admin/tenants/{tenant}/keys", {})],
    ("POST", "/v1/admin/models"): [],
    ("POST", "/v1/admin/unverified_models"): [],
    ("POST", "/v1/admin/model_keys"): [],
    ("PUT", "/v1/admin/aliases/{alias}"): [
        Ask("/v1/admin/aliases/{alias}", {"target": "{version}"})
    ],
    ("DELETE", "/v1/admin/aliases/{alias}"): [Ask("/v1/admin/aliases/{alias}")],
    ("POST", "/v1/admin/models/{name}/retire"): [Ask("/v1/admin/models/{version}/retire", {})],
    ("DELETE", "/v1/admin/model_keys/{model_key}"): [Ask("/v1/admin/model_keys/{model_key}")],
    ("DELETE", "/v1/admin/keys/{key_id}"): [Ask("/v1/admin/keys/{key}")],
    ("GET", "/v1/admin/quarantines"): [],
    ("DELETE", "/v1/admin/quarantines/{quarantine_id}"): [
        Ask("/v1/admin/quarantines/{quarantine}")
    ],
    ("DELETE", "/v1/admin/tenants/{tenant_id}"): [Ask("/v1/admin/tenants/{tenant}")],
}

# Asked for once each when only the key is in question.
PLAIN: dict[tuple[str, str], Ask] = {
    ("GET", "/v1/models/{name}"): Ask("/v1/models/org/small"),
    ("POST", "/v1/webhook_endpoints"): Ask("/v1/webhook_endpoints", NEW_ENDPOINT),
    ("POST", "/v1/admin/tenants"): Ask("/v1/admin/tenants", {"name": "made by nobody"}),
    ("POST", "/v1/webhook_callback_secret/rotate"): Ask("/v1/webhook_callback_secret/rotate", {}),
    **{("POST", path): Ask(path, CALL) for path in ENDPOINTS},
}

OPEN = {("GET", path) for path in ("/healthz", "/readyz", "/metrics")}
"""Routes that want no key."""


def _filled(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, given in ids.items():
            value = value.replace("{" + name + "}", given)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(inner, ids) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, ids) for inner in value]
    return value


def _places(value: Any) -> set[str]:
    if isinstance(value, str):
        # Dotted names: `own.batch` would be an attribute to `str.format`.
        return {name for _, name, _, _ in string.Formatter().parse(value) if name}
    if isinstance(value, Mapping):
        return set().union(*map(_places, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(_places, value))
    return set()
