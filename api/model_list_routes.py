"""Routes of models."""

from fastapi import APIRouter, Response

from api.auth.principals import PrincipalOf, ServicesOf
from api.http.responses import ApiError, json_answer
from api.resources import model_object
from registry.models import find_model, list_models

router = APIRouter()


@router.get("/v1/models")
async def show_list(principal: PrincipalOf, services: ServicesOf) -> Response:
    """List what can be asked for."""
    models = await services.database.run_for(principal.tenant_id, list_models)
    return json_answer({"object": "list", "data": [model_object(model) for model in models]})


@router.get("/v1/models/{name:path}")
async def show(name: str, principal: PrincipalOf, services: ServicesOf) -> Response:
    """Show one model; names may hold slashes."""
    model = await services.database.run_for(principal.tenant_id, find_model, name)
    if model is None:
        raise ApiError(404, "No such model.", code="model_not_found", param="model")
    return json_answer(model_object(model))
