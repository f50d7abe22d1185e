"""The library's other front door: many requests at a time over one engine, from any thread or event loop."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.engine import Engine
from dflash_runtime.completion import Completion
from dflash_runtime.cost_cache import cached_costs
from dflash_runtime.cost_table import CostTable
from dflash_runtime.decoder import DEFAULT_MAX_NEW_TOKENS, Decoder, request_controls, sampling_parameters
from dflash_runtime.prompt import Prompt
from dflash_runtime.request import Request
from dflash_runtime.serving.engine_thread import EngineThread
from dflash_runtime.serving.generation import WHENEVER, Urgency
from dflash_runtime.serving.observer import NoObserver, Observer
from dflash_runtime.serving.pacer import Pacer
from dflash_runtime.serving.scheduler import Scheduler
from dflash_runtime.serving.streams import AnswerStream, AsyncAnswerStream
from dflash_runtime.serving.waiting_queue import WaitingQueue

DEFAULT_SLOTS, DEFAULT_QUEUE_SIZE, DEFAULT_TARGET_GAP = 4, 64, 0.2


class ConcurrentDecoder:
    """Serves up to `slots` requests together; others wait in a queue, first come, first served.

    A request gets the same tokens in any company. Methods may be called from any thread, though not from a
    process that was forked off later. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        queue_size: int = DEFAULT_QUEUE_SIZE,
        target_gap: float = DEFAULT_TARGET_GAP,
        observer: Observer | None = None,
        costs: Callable[[], CostTable] | None = None,
    ) -> None:
        """As `load`, which most will use; `costs` are as DecodeLoop's."""
        self.texts = Decoder(engine)
        self.queue = WaitingQueue(slots=engine.limits.max_batch, size=queue_size)
        pacer = Pacer(prefill_chunk=engine.limits.prefill_chunk, target_gap=target_gap)
        scheduler = Scheduler(engine, queue=self.queue, pacer=pacer, observer=observer or NoObserver(), costs=costs)
        self._thread = EngineThread(scheduler, self.queue)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backend: str = "onnxruntime",
        slots: int = DEFAULT_SLOTS,
        queue_size: int = DEFAULT_QUEUE_SIZE,
        target_gap: float = DEFAULT_TARGET_GAP,
        threads: int | None = None,
        max_len: int | None = None,
    ) -> Self:
        """Load the bundle in folder `path` for `slots` requests together, with `queue_size` more waiting.

        `target_gap`, in seconds, is what the 99th percentile between two steps of a request is kept under, as far
        as chunks of other requests' prompts can: they are made smaller. The rest is as Decoder.load's.
        """
        options = Options(threads=threads, max_len=max_len, slots=slots)
        engine = load_engine(Bundle.open(path), backend, options)
        costs = cached_costs(engine, backend=backend, threads=threads)
        return cls(engine, queue_size=queue_size, target_gap=target_gap, costs=costs)

    @property
    def alive(self) -> bool:
        """Whether requests are being served."""
        return self._thread.alive

    def request(  # noqa: PLR0913, a request has as many options as it has
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        block_size: int | None = None,
        stop_token_ids: Collection[int] | None = None,
        stop: str | Sequence[str] | None = None,
        response_format: Mapping[str, Any] | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
        bad_token_ids: Collection[int] = (),
        min_tokens: int = 0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logprobs: int | None = None,
        draft_temperature: float | None = None,
        denoise_steps: int = 1,
    ) -> Request:
        """A checked request, with the options of Decoder.generate. It may be served any number of times.

        Without a `seed`, one is drawn here. Raises RequestError.
        """
        controls = request_controls(
            logit_bias=logit_bias,
            bad_token_ids=bad_token_ids,
            min_tokens=min_tokens,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logprobs=logprobs,
        )
        sampling = sampling_parameters(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            denoise_steps=denoise_steps,
            controls=controls,
        )
        return self.texts.request(
            prompt,
            max_new_tokens,
            block_size,
            stop_token_ids,
            sampling,
            stop=stop,
            response_format=response_format,
            draft_temperature=draft_temperature,
        )

    def generate(self, request: Request, urgency: Urgency = WHENEVER) -> AnswerStream:
        """Steps to iterate over, in any thread. Raises QueueFullError or ClosedError here, not at the first step."""
        stream = AnswerStream(self.texts.answer(request), urgency)
        self._thread.submit([stream.generation])
        return stream

    def complete(self, request: Request, urgency: Urgency = WHENEVER) -> Completion:
        """The whole answer."""
        return self.generate(request, urgency).finish()

    def stream(self, request: Request, urgency: Urgency = WHENEVER) -> AsyncAnswerStream:
        """Steps for `async for`, in a coroutine. Raises as `generate`."""
        return self.stream_all([request], urgency)[0]

    def stream_all(
        self, requests: Sequence[Request], urgency: Urgency = WHENEVER, shown: Collection[str] = ()
    ) -> list[AsyncAnswerStream]:
        """As `stream`, for several that are taken in together or not at all.

        Their texts have the special tokens that are named in `shown`; no others.
        """
        streams = [AsyncAnswerStream(self.texts.answer(request, shown), urgency) for request in requests]
        self._thread.submit([stream.generation for stream in streams])
        return streams

    def close(self, *, drain: float | None = None) -> None:
        """Take in nothing more, and finish what was taken in, for up to `drain` seconds; None waits for all.

        What is left then ends with ClosedError.
        """
        self._thread.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        """Drain; after an error or Ctrl-C, don't wait."""
        self.close(drain=None if kind is None else 0)
