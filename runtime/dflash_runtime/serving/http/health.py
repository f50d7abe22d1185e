"""GET /health, /ready and /metrics: for whoever watches over the server. They need no key."""

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from dflash_runtime.serving.http.service import service_of

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """200 as long as the process works; 503 tells to start it again."""
    service = service_of(request)
    return JSONResponse({"status": service.state}, 503 if service.state == "stopped" else 200)


@router.get("/ready", response_model=None)
async def ready(request: Request) -> Response:
    """200 while requests are served: not before the engine has passed its golden test, nor while draining."""
    service = service_of(request)
    return JSONResponse({"status": service.state}, 200 if service.state == "ready" else 503)


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """In Prometheus' text format."""
    return Response(generate_latest(service_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)
