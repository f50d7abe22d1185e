"""GET /v1/models."""

from fastapi import APIRouter, Request

from dflash_runtime.serving.http.service import service_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, object]:
    """The one model."""
    return {"object": "list", "data": [_model(request)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, object]:
    """The model, if it has that name."""
    service_of(request).check_model(name)
    return _model(request)


def _model(request: Request) -> dict[str, object]:
    service = service_of(request)
    limits = {"max_model_len": service.decoder.texts.engine.limits.max_len} if service.state == "ready" else {}
    return {"id": service.settings.model, "object": "model", "created": service.began, "owned_by": "dflash"} | limits
