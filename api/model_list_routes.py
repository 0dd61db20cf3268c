"""Routes of models."""

from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.errors import ApiError
from api.http.responses import json_response
from api.resources import model_object
from registry.models import find_model, list_models

router = APIRouter()


@router.get("/v1/models")
async def show_list(request: TenantRequestDep) -> Response:
    """List the models that are served."""
    models = await request.services.database.run_for_tenant(request.tenant_id, list_models)
    return json_response({"object": "list", "data": [model_object(model) for model in models]})


@router.get("/v1/models/{name:path}")
async def show(name: str, request: TenantRequestDep) -> Response:
    """Show a model. Its name may contain slashes."""
    model = await request.services.database.run_for_tenant(request.tenant_id, find_model, name)
    if model is None:
        raise ApiError(404, "The model does not exist.", code="model_not_found", param="model")
    return json_response(model_object(model))
