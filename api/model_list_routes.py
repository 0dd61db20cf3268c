"""Routes of models."""

from functools import partial

from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.errors import ApiError
from api.http.responses import json_response
from api.resources import model_object
from registry.models import list_models, resolve

router = APIRouter()


@router.get("/v1/models")
async def show_list(request: TenantRequestDep) -> Response:
    """List the models that the tenant may use: aliases and its private adapters, too."""
    listed = partial(list_models, tenant_id=request.tenant_id)
    models = await request.services.database.run_for_tenant(request.tenant_id, listed)
    return json_response({"object": "list", "data": [model_object(model) for model in models]})


@router.get("/v1/models/{name:path}")
async def show(name: str, request: TenantRequestDep) -> Response:
    """Show what a name, an alias or `name@version` means. Names may contain slashes."""
    found = partial(resolve, text=name, tenant_id=request.tenant_id)
    model = await request.services.database.run_for_tenant(request.tenant_id, found)
    if model is None or model.retired_at is not None:
        raise ApiError(404, "The model does not exist.", code="model_not_found", param="model")
    return json_response(model_object(model))
