"""What the endpoints share: the decoder, once it is loaded and has proved itself, and where the server stands."""

from collections.abc import Callable
from threading import Lock
from time import time
from typing import Literal

from starlette.requests import Request

from dflash_runtime.serving.concurrent_decoder import ConcurrentDecoder
from dflash_runtime.serving.errors import ClosedError
from dflash_runtime.serving.http.errors import ApiError
from dflash_runtime.serving.http.metrics import Metrics
from dflash_runtime.serving.http.settings import Settings

State = Literal["loading", "ready", "draining", "stopped"]
Load = Callable[[Metrics], ConcurrentDecoder]


class Service:
    """`load` makes the decoder, and checks it; it is called once, by `start`."""

    def __init__(self, load: Load, settings: Settings) -> None:
        self.settings, self.began = settings, int(time())
        self.metrics = Metrics(settings.acceptance_alarm)
        self._load = load
        self._decoder: ConcurrentDecoder | None = None
        self._draining = False
        self._changing = Lock()

    @property
    def state(self) -> State:
        """Requests are served while it is "ready"."""
        if self._draining:
            return "draining"
        if self._decoder is None:
            return "loading"
        return "ready" if self._decoder.alive else "stopped"

    @property
    def decoder(self) -> ConcurrentDecoder:
        """Raises ClosedError while there is none."""
        if self._decoder is None:
            raise ClosedError("the model is still being loaded and checked; try again in a moment")
        return self._decoder

    def start(self) -> None:
        """Load the model, which may take its time. Raises DflashError."""
        decoder = self._load(self.metrics)
        self.metrics.watch(decoder)
        with self._changing:
            self._decoder = decoder
        if self._draining:
            self.close()

    def close(self) -> None:
        """Take in nothing more; running answers may take the time that the settings give them."""
        self._draining = True
        with self._changing:
            decoder = self._decoder
        if decoder is not None:
            decoder.close(drain=self.settings.drain_timeout)

    def check_model(self, name: str) -> None:
        """Raises ApiError for a model that isn't served here."""
        if name != self.settings.model:
            raise ApiError(
                404,
                f"there is no model {name!r} here, only {self.settings.model!r}",
                code="model_not_found",
                param="model",
            )


def service_of(request: Request) -> Service:
    """The service of the application that got `request`."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
