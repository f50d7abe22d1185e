"""The library's front door: load a bundle, generate text."""

import secrets
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from time import perf_counter
from typing import Self

from tokenizers import Tokenizer

from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.engine import Engine
from dflash_engines.errors import BundleError, RequestError
from dflash_engines.sampling import LIKELIEST, SamplingParameters
from dflash_runtime.chat_template import ChatTemplate
from dflash_runtime.completion import Completion, Step, TimeSplit, time_split
from dflash_runtime.detokenize import Detokenizer, detokenizers
from dflash_runtime.loop import DecodeLoop, Progress
from dflash_runtime.prompt import Prompt, PromptEncoder
from dflash_runtime.request import Request, check_request, count, token_ids

TOKENIZER_FILE = "tokenizer.json"
DEFAULT_MAX_NEW_TOKENS = 256
_SLOT = 0


class Decoder:
    """Generates with one engine, one request at a time, from one thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = _tokenizer(engine.bundle.file(TOKENIZER_FILE))
        self.tokenizer.no_truncation()  # a prompt is never cut behind the user's back
        self.tokenizer.no_padding()
        self.encoder = PromptEncoder(self.tokenizer, ChatTemplate.of(engine.bundle))
        self._new_detokenizer = detokenizers(self.tokenizer)
        self._loop = DecodeLoop(engine)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backend: str = "onnxruntime",
        threads: int | None = None,
        max_len: int | None = None,
    ) -> Self:
        """Load the bundle in folder `path`.

        `threads` defaults to all cores; `max_len`, in tokens, to the bundle's own, and may be smaller to save
        memory. Raises BundleError, ContractError or EngineError.
        """
        options = Options(threads=threads, max_len=max_len, slots=1)
        return cls(load_engine(Bundle.open(path), backend, options))

    def generate(  # noqa: PLR0913, a request has as many options as it has
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        block_size: int | None = None,
        stop_token_ids: Collection[int] | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
    ) -> Generator[Step, None, Completion]:
        """Yield a step for every target pass until a stop token, `max_new_tokens` or the end of the context.

        `block_size` 1 decodes without the drafter; the default is the one the drafter was trained for, or the
        engine's largest if that is smaller. `stop_token_ids` takes the place of the model's own; () stops at
        none. `temperature` 0 takes the likeliest token; above, tokens are sampled after `top_k`, `top_p` and
        `min_p` (see SamplingParameters). The same `seed` gives the same answer at any block size; without one,
        the answer reports the one drawn for it. Raises RequestError here, not at the first step. The generator's
        own value is the whole answer; it may be dropped at any point.
        """
        sampling = sampling_parameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        return self.run(self.request(prompt, max_new_tokens, block_size, stop_token_ids, sampling))

    def complete(  # noqa: PLR0913, as generate
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        block_size: int | None = None,
        stop_token_ids: Collection[int] | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
    ) -> Completion:
        """Like `generate`, but returns the whole answer."""
        steps = self.generate(
            prompt,
            max_new_tokens=max_new_tokens,
            block_size=block_size,
            stop_token_ids=stop_token_ids,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
        return finish(steps)

    def request(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        block_size: int | None,
        stop_token_ids: Collection[int] | None,
        sampling: SamplingParameters = LIKELIEST,
    ) -> Request:
        """The checked request in token ids. Raises RequestError."""
        manifest, limits = self.engine.bundle.manifest, self.engine.limits
        stops = manifest.stop_token_ids if stop_token_ids is None else stop_token_ids
        largest = min(manifest.block_size, max(limits.block_sizes))
        request = Request(
            tokens=self.encoder.encode(prompt),
            max_new_tokens=count("max_new_tokens", max_new_tokens),
            stop_token_ids=frozenset(token_ids("stop_token_ids", stops)),
            block_size=largest if block_size is None else count("block_size", block_size),
            sampling=sampling,
        )
        check_request(request, limits=limits, manifest=manifest)
        self._check_idle()
        return request

    def forget(self) -> None:
        """Hold no prompt any more: the next request computes its own from the first token.

        Raises RequestError while a generation runs.
        """
        self._check_idle()
        self._loop.slots[_SLOT].forget()

    def _check_idle(self) -> None:
        if self._loop.slots[_SLOT].request is not None:
            raise RequestError("another generation is running on this decoder; finish or close it first")

    def run(self, request: Request) -> Generator[Step, None, Completion]:
        """Yield a step for every target pass of a checked request; the generator's value is the whole answer."""
        detokenizer = self._new_detokenizer()
        before, begin, seconds = self.engine.timing, perf_counter(), 0.0
        steps: list[Step] = []
        for progress in self._loop.run(_SLOT, request):
            steps.append(_step(progress, detokenizer))
            seconds += perf_counter() - begin
            yield steps[-1]
            begin = perf_counter()  # the receiver's time is not ours
        return self._completion(request, steps, time_split(before, self.engine.timing, seconds))

    def _completion(self, request: Request, steps: list[Step], seconds: TimeSplit) -> Completion:
        reason = steps[-1].finish_reason
        assert reason is not None
        return Completion(
            text="".join(step.text for step in steps),
            token_ids=tuple(token for step in steps for token in step.token_ids),
            acceptance_lengths=tuple(s.acceptance_length for s in steps if s.acceptance_length is not None),
            block_sizes=tuple(s.block_size for s in steps if s.block_size is not None),
            finish_reason=reason,
            prompt_tokens=len(request.tokens),
            reused_tokens=self._loop.slots[_SLOT].reused,
            seconds=seconds,
            seed=None if request.sampling.greedy else request.sampling.seed,
        )


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as e:  # the library has no class of its own for what is wrong with a file
        raise BundleError(f"{file} is not a tokenizer ({e}); export the pair again") from e


def sampling_parameters(
    *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None
) -> SamplingParameters:
    """The checked parameters, with a fresh seed of 32 bits where none is given. Raises RequestError."""
    return SamplingParameters(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=secrets.randbits(32) if seed is None else seed,
    )


def finish(steps: Generator[Step, None, Completion], on_step: Callable[[Step], object] = lambda _: None) -> Completion:
    """Run `steps` to its end, showing each to `on_step`; returns the whole answer."""
    while True:
        try:
            on_step(next(steps))
        except StopIteration as end:
            completion: Completion = end.value
            return completion


def _step(progress: Progress, detokenizer: Detokenizer) -> Step:
    """A stop token may be an ordinary one: it is left out of the text whatever it is."""
    shown = progress.token_ids[:-1] if progress.finish_reason == "stop" else progress.token_ids
    accepted_text = detokenizer.push(shown[: progress.accepted])
    text = accepted_text + detokenizer.push(shown[progress.accepted :])
    if progress.finish_reason is not None:
        text += detokenizer.flush()
    return Step(
        token_ids=progress.token_ids,
        text=text,
        accepted=progress.accepted,
        accepted_text=accepted_text,
        acceptance_length=progress.acceptance_length,
        finish_reason=progress.finish_reason,
        block_size=progress.block_size,
    )
