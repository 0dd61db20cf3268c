"""The document at `/openapi.json`: adds bodies, statuses and errors to what FastAPI knows.

Routes read their bodies themselves, so FastAPI knows no schema of them. The API never sends the 422
that FastAPI would list.
"""

from typing import Any, Final

import msgspec
from fastapi import FastAPI

from api.admin.admin_alias_routes import AliasBody
from api.admin.admin_model_check_routes import UnverifiedModelBody
from api.admin.admin_model_key_routes import NewModelKeyBody
from api.admin.admin_model_routes import NewModelBody, RetireBody
from api.admin.admin_tenant_routes import NewKeyBody, NewTenantBody, TenantChangeBody
from api.batches.batch_routes import AppendBody, BatchBody, ChangeBody
from api.batches.dead_letter_routes import RedriveBody
from api.webhooks.delivery_routes import ReplayBody, TestBody
from api.webhooks.endpoint_routes import EndpointChangeBody, NewEndpointBody, RotateBody
from registry.models import ENDPOINTS

_REF: Final = "#/components/schemas/{name}"
_ENDPOINT: Final = "/v1/webhook_endpoints/{endpoint_id}"

BODIES: Final[dict[str, type[msgspec.Struct]]] = {
    "/v1/admin/aliases/{alias}": AliasBody,
    "/v1/admin/model_keys": NewModelKeyBody,
    "/v1/admin/models": NewModelBody,
    "/v1/admin/models/{name}/retire": RetireBody,
    "/v1/admin/tenants": NewTenantBody,
    "/v1/admin/unverified_models": UnverifiedModelBody,
    "/v1/admin/tenants/{tenant_id}": TenantChangeBody,
    "/v1/admin/tenants/{tenant_id}/keys": NewKeyBody,
    "/v1/batches": BatchBody,
    "/v1/batches/{batch_id}": ChangeBody,
    "/v1/batches/{batch_id}/append": AppendBody,
    "/v1/dead_letters/redrive": RedriveBody,
    "/v1/webhook_endpoints": NewEndpointBody,
    _ENDPOINT: EndpointChangeBody,
    f"{_ENDPOINT}/rotate_secret": RotateBody,
    f"{_ENDPOINT}/test": TestBody,
    f"{_ENDPOINT}/replay": ReplayBody,
    "/v1/webhook_callback_secret/rotate": RotateBody,
}
"""JSON bodies of POST and PUT routes, by path."""

_WITH_BODY: Final = frozenset({"post", "put"})

_READ: Final = {
    400: "A parameter is invalid; `param` names it.",
    401: "The API key is missing or invalid.",
    404: "The object does not exist, or belongs to another tenant.",
    429: "A quota, a rate limit or the tenant's share of a limit is exceeded.",
    503: "The service is overloaded or unavailable. Retry after `Retry-After` seconds.",
}
_WRITE: Final = _READ | {
    408: "The body arrived too slowly.",
    409: "A request with the same idempotency key is in progress, or the state has changed.",
    413: "The body is too large.",
    415: "The body has an unsupported media type or a Content-Encoding.",
    422: "The idempotency key was used for another request.",
}
_CALL: Final = _WRITE | {
    402: "The engine requires payment.",
    403: "The response would be stored, and the tenant has zero retention.",
    502: "The execution was interrupted.",
    504: "The deadline of the call has passed.",
}
_ADMIN: Final = "/v1/admin/"
_ADMIN_ONLY: Final = {403: "The operator key may only read."}
_DELETED: Final = {410: "The stored response is deleted."}
_STALE: Final = {412: "The alias has another revision than `If-Match` names."}
_ROUTE_REFUSALS: Final = {
    ("delete", "/v1/admin/aliases/{alias}"): _STALE
    | {409: "Other aliases follow it.", 428: "`If-Match` is missing."},
    ("put", "/v1/admin/aliases/{alias}"): _STALE
    | {428: "The alias exists, and `If-Match` is missing."},
    ("delete", "/v1/batches/{batch_id}"): {409: "The batch has not ended."},
    ("get", "/v1/files/{file_id}/content"): {416: "The range starts after the end of the file."},
    ("get", "/v1/jobs/{job_id}"): _DELETED,
    ("delete", "/v1/jobs/{job_id}"): _DELETED | {409: "The job has ended."},
    ("post", "/v1/dead_letters/redrive"): _DELETED,
    ("post", "/v1/webhook_endpoints"): _DELETED,
    ("post", "/v1/webhook_endpoints/{endpoint_id}/rotate_secret"): _DELETED,
    ("post", "/v1/webhook_callback_secret/rotate"): _DELETED,
}
"""Errors of single routes."""

_JSON: Final = "application/json"
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_RESPONSES: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("get", "/v1/files/{file_id}/content"): {
        "200": {
            "description": "The content of the file.",
            "content": {"application/octet-stream": _BYTES},
        },
        "206": {
            "description": "The requested range of the file.",
            "content": {"application/octet-stream": _BYTES},
        },
    },
    ("get", "/v1/batches/{batch_id}/results"): {
        "200": {
            "description": "The results available now, or a stream of events.",
            "content": {"application/x-ndjson": {}, "text/event-stream": {}},
        },
        "204": {"description": "The batch has ended and the stream is complete."},
    },
}
"""Successful responses that are not one JSON object."""

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_CALL_BODY: Final = {
    "type": "object",
    "description": "The engine's fields, in addition to these.",
    "required": ["model"],
    "properties": {
        "model": {"type": "string"},
        "stream": {"type": ["boolean", "null"]},
        "timeout_ms": {"type": ["number", "null"]},
        "queue_timeout_ms": {"type": ["number", "null"]},
        "background": {"type": ["boolean", "null"]},
    },
}
_FORM: Final = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "purpose": {"type": "string"},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
        "file": {"type": "string", "format": "binary"},
    },
}


def describe(app: FastAPI, *, online: bool) -> None:
    """Complete the OpenAPI document of `app`; with `online` it includes the online calls."""
    original = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            if online:
                document["paths"] |= {path: {"post": _call_operation(path)} for path in ENDPOINTS}
            app.openapi_schema = _complete(document)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's documented way


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    schemas_of_bodies, components = msgspec.json.schema_components(
        BODIES.values(), ref_template=_REF
    )
    bodies = dict(zip(BODIES, schemas_of_bodies, strict=True))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            key = (method, path)
            if method in _WITH_BODY and path in bodies:
                operation["requestBody"] = _body(_JSON, bodies[path])
            if key == ("post", "/v1/files"):
                operation["requestBody"] = _body("multipart/form-data", _FORM)
            errors = _error_responses(*key)
            answers = _RESPONSES.get(key) or {
                status: answer
                for status, answer in operation["responses"].items()
                if status.startswith("2")
            }
            operation["responses"] = answers | errors
            operation["security"] = [{"bearer": []}, {"key": []}]
    components_of_document = document.setdefault("components", {})
    schemas = components_of_document.get("schemas", {}) | components | {"Error": _ERROR}
    components_of_document["schemas"] = {
        name: schema for name, schema in schemas.items() if "ValidationError" not in name
    }
    components_of_document["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return document


def _error_responses(method: str, path: str) -> dict[str, Any]:
    of_operation = _WRITE if method in _WITH_BODY else _READ
    descriptions = _CALL if path in ENDPOINTS else of_operation
    if path.startswith(_ADMIN) and method != "get":
        descriptions = descriptions | _ADMIN_ONLY
    content = {_JSON: {"schema": {"$ref": _REF.format(name="Error")}}}
    return {
        str(status): {"description": description, "content": content}
        for status, description in sorted(
            (descriptions | _ROUTE_REFUSALS.get((method, path), {})).items()
        )
    }


def _call_operation(path: str) -> dict[str, Any]:
    answers: dict[str, Any] = {_JSON: {}, "text/event-stream": {}}
    return {
        "summary": "Call a model",
        "operationId": "call_" + path.removeprefix("/v1/").replace("/", "_"),
        "requestBody": _body(_JSON, _CALL_BODY),
        "responses": {
            "200": {
                "description": "The engine's response, complete or streamed.",
                "content": answers,
            },
            "202": {"description": "A reference to the job of the call.", "content": {_JSON: {}}},
        },
    }


def _body(media_type: str, schema: object) -> dict[str, Any]:
    return {"required": True, "content": {media_type: {"schema": schema}}}
