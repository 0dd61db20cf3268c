"""Routes for whoever runs us: alive, ready, numbers. They need no key and tell no tenant's data."""

from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.answers import json_answer
from api.online.online import Online
from api.principals import ServicesOf

router = APIRouter(include_in_schema=False)

_PROBE_S_MAX: Final = 2.0


@router.get("/healthz")
async def alive() -> Response:
    """Answer while the event loop turns: a restart would cure nothing else."""
    return json_answer({"status": "ok"})


@router.get("/readyz")
async def ready(request: Request, services: ServicesOf) -> Response:
    """Answer 200 while requests can be served, and from the first moment on that all can."""
    online: Online | None = request.app.state.online
    if online is not None and not online.is_ready:
        return json_answer({"status": "log away"}, 503, {"retry-after": "2"})
    hindrance = await services.database.hindrance(_PROBE_S_MAX)
    if hindrance is not None:
        return json_answer({"status": hindrance}, 503, {"retry-after": "2"})
    return json_answer({"status": "ok"})


@router.get("/metrics")
async def numbers() -> Response:
    """Return this process's metrics in Prometheus' text format."""
    return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})
