"""GET /: a playground, from the files in `serving/page`. It asks nothing of any other place."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)
FOLDER = files("dflash_runtime.serving") / "page"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_MEDIA_TYPES = {
    "index.html": "text/html",
    "app.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}


@router.get("/")
async def index() -> Response:
    """The page itself."""
    return _file("index.html")


@router.get("/page/{name}")
async def asset(name: str) -> Response:
    """What the page consists of."""
    if name not in _MEDIA_TYPES:
        raise HTTPException(404)
    return _file(name)


def _file(name: str) -> Response:
    return Response((FOLDER / name).read_bytes(), media_type=_MEDIA_TYPES[name], headers=HEADERS)
