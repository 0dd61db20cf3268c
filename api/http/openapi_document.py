"""What `/openapi.json` says: bodies, statuses and errors, beside what the framework sees.

Routes read their bodies themselves, so the framework knows no shape of any of them; and a failure
is never the 422 of its own that it would list.
"""

from typing import Any, Final

import msgspec
from fastapi import FastAPI

from api.batches.batch_control_routes import AppendBody, ChangeBody
from api.batches.batch_routes import BatchBody
from api.batches.dead_letter_routes import RedriveBody
from api.webhooks.delivery_routes import ReplayBody, TestBody
from api.webhooks.endpoint_routes import EndpointChangeBody, NewEndpointBody
from api.webhooks.secret_routes import RotateBody
from registry.models import ENDPOINTS

_REF: Final = "#/components/schemas/{name}"
_ENDPOINT: Final = "/v1/webhook_endpoints/{endpoint_id}"

BODIES: Final[dict[str, type[msgspec.Struct]]] = {
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
"""JSON bodies of POST, by path."""

_READ: Final = {
    400: "A parameter is wrong; `param` names it.",
    401: "The key is missing or does not work.",
    404: "There is no such thing, or it belongs to somebody else.",
    429: "A quota, a rate or a share is exhausted.",
    503: "Try again after `Retry-After` seconds.",
}
_WRITE: Final = _READ | {
    408: "The body came too slowly.",
    409: "An equal request is being answered, or the state has changed.",
    413: "The body is too large.",
    415: "The body has the wrong type or a Content-Encoding.",
    422: "The idempotency key was used for another request.",
}
_CALL: Final = _WRITE | {
    402: "The engine asks for payment.",
    403: "The answer would be kept, and the tenant retains nothing.",
    502: "The engine gave no answer.",
    504: "The deadline is over.",
}
_GONE: Final = {410: "It was there and is gone."}
_ALSO: Final = {
    ("delete", "/v1/batches/{batch_id}"): {409: "The batch has not ended."},
    ("get", "/v1/files/{file_id}/content"): {416: "The range begins behind the end."},
    ("get", "/v1/jobs/{job_id}"): _GONE,
    ("delete", "/v1/jobs/{job_id}"): _GONE | {409: "The job has ended."},
    ("post", "/v1/dead_letters/redrive"): _GONE,
    ("post", "/v1/webhook_endpoints"): _GONE,
    ("post", "/v1/webhook_endpoints/{endpoint_id}/rotate_secret"): _GONE,
    ("post", "/v1/webhook_callback_secret/rotate"): _GONE,
}
"""Refusals of single routes."""

_JSON: Final = "application/json"
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_ANSWERS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("get", "/v1/files/{file_id}/content"): {
        "200": {"description": "The bytes.", "content": {"application/octet-stream": _BYTES}},
        "206": {"description": "A range.", "content": {"application/octet-stream": _BYTES}},
    },
    ("get", "/v1/batches/{batch_id}/results"): {
        "200": {
            "description": "Results up to now, or a stream of events.",
            "content": {"application/x-ndjson": {}, "text/event-stream": {}},
        },
        "204": {"description": "The stream has ended and will not go on."},
    },
}
"""Answers that are not one JSON object."""

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
    "description": "The engine's own fields, beside these.",
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
    """Let `app` tell what its routes take and answer; with `online` the calls, too."""
    original = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            if online:
                document["paths"] |= {path: {"post": _call(path)} for path in ENDPOINTS}
            app.openapi_schema = _complete(document)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # the framework's documented way


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    shapes, components = msgspec.json.schema_components(BODIES.values(), ref_template=_REF)
    bodies = dict(zip(BODIES, shapes, strict=True))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            key = (method, path)
            if method == "post" and path in bodies:
                operation["requestBody"] = _body(_JSON, bodies[path])
            if key == ("post", "/v1/files"):
                operation["requestBody"] = _body("multipart/form-data", _FORM)
            refusals = _refusals(*key)
            answers = _ANSWERS.get(key) or {
                status: answer
                for status, answer in operation["responses"].items()
                if status.startswith("2")
            }
            operation["responses"] = answers | refusals
            operation["security"] = [{"bearer": []}, {"key": []}]
    held = document.setdefault("components", {})
    schemas = held.get("schemas", {}) | components | {"Error": _ERROR}
    held["schemas"] = {
        name: schema for name, schema in schemas.items() if "ValidationError" not in name
    }
    held["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return document


def _refusals(method: str, path: str) -> dict[str, Any]:
    of_method = _WRITE if method == "post" else _READ
    meanings = _CALL if path in ENDPOINTS else of_method
    content = {_JSON: {"schema": {"$ref": _REF.format(name="Error")}}}
    return {
        str(status): {"description": meaning, "content": content}
        for status, meaning in sorted((meanings | _ALSO.get((method, path), {})).items())
    }


def _call(path: str) -> dict[str, Any]:
    answers: dict[str, Any] = {_JSON: {}, "text/event-stream": {}}
    return {
        "summary": "Call a model",
        "operationId": "call_" + path.removeprefix("/v1/").replace("/", "_"),
        "requestBody": _body(_JSON, _CALL_BODY),
        "responses": {
            "200": {"description": "The engine's answer, whole or streamed.", "content": answers},
            "202": {"description": "A job that can be asked for.", "content": {_JSON: {}}},
        },
    }


def _body(media_type: str, schema: object) -> dict[str, Any]:
    return {"required": True, "content": {media_type: {"schema": schema}}}
