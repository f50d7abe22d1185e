"""The ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from dflash_runtime.serving.http import chat, completions, health, models, page
from dflash_runtime.serving.http.errors import add_handlers
from dflash_runtime.serving.http.middleware import ApiKeys, BodyLimit
from dflash_runtime.serving.http.request_log import RequestLog
from dflash_runtime.serving.http.service import Service


def create_app(service: Service, on_failure: Callable[[BaseException], object]) -> FastAPI:
    """The application before `service`, which is loaded while the application runs already.

    `on_failure` is told when the loading fails.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(service.start))
        loading.add_done_callback(lambda done: _report(done, on_failure))
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)
            await asyncio.wait((loading,))

    app = FastAPI(title="dflash-serve", version=version("dflash-trt"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    for router in (chat.router, completions.router, models.router, health.router):
        app.include_router(router)
    if service.settings.page:
        app.include_router(page.router)
    add_handlers(app)
    _add_middleware(app, service)
    return app


def _report(loading: "asyncio.Task[None]", on_failure: Callable[[BaseException], object]) -> None:
    fault = None if loading.cancelled() else loading.exception()
    if fault is not None:
        on_failure(fault)


def _add_middleware(app: FastAPI, service: Service) -> None:
    """The one that is added last meets a request first."""
    settings = service.settings
    app.add_middleware(BodyLimit, largest=settings.largest_body, timeout=settings.body_timeout)
    if settings.api_keys:
        app.add_middleware(ApiKeys, keys=settings.api_keys)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    app.add_middleware(RequestLog, metrics=service.metrics)
