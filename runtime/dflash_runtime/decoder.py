"""The library's front door: load a bundle, generate text."""

import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from tokenizers import Tokenizer

from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.controls import NEUTRAL, Controls, biases
from dflash_engines.engine import Engine
from dflash_engines.errors import BundleError, RequestError
from dflash_engines.sampling import LIKELIEST, SamplingParameters
from dflash_runtime.answer import Answer
from dflash_runtime.chat_template import ChatTemplate
from dflash_runtime.completion import Completion, Step, time_split
from dflash_runtime.cost_cache import cached_costs
from dflash_runtime.cost_table import CostTable
from dflash_runtime.detokenize import detokenizers, special_tokens
from dflash_runtime.drafting import with_draws
from dflash_runtime.loop import DecodeLoop
from dflash_runtime.prompt import Prompt, PromptEncoder
from dflash_runtime.request import Request, check_request, count, token_ids
from dflash_runtime.stop_strings import stop_strings
from dflash_runtime.structured.constraint import Grammar
from dflash_runtime.structured.response_format import structured_output

if TYPE_CHECKING:
    from dflash_runtime.structured.grammars import Grammars

TOKENIZER_FILE = "tokenizer.json"
DEFAULT_MAX_NEW_TOKENS = 256
_SLOT = 0


class Decoder:
    """Generates with one engine, one request at a time, from one thread."""

    def __init__(self, engine: Engine, costs: Callable[[], CostTable] | None = None) -> None:
        """`costs` gives the engine's cost table when it is first needed; by default it is measured."""
        self.engine = engine
        self.tokenizer = _tokenizer(engine.bundle.file(TOKENIZER_FILE))
        self.tokenizer.no_truncation()  # a prompt is never cut behind the user's back
        self.tokenizer.no_padding()
        self.encoder = PromptEncoder(self.tokenizer, ChatTemplate.of(engine.bundle))
        self._new_detokenizer = detokenizers(self.tokenizer)
        self._loop = DecodeLoop(engine, costs)

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
        engine = load_engine(Bundle.open(path), backend, options)
        return cls(engine, cached_costs(engine, backend=backend, threads=threads))

    def generate(  # noqa: PLR0913, a request has as many options as it has
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
    ) -> Generator[Step, None, Completion]:
        """Yield a step for every target pass until a stop, `max_new_tokens` or the end of the context.

        `block_size` 1 decodes without the drafter; by default each pass has the size that pays best at the moment, by
        costs that are measured when they are first needed. `denoise_steps` drafts a block in several launches, and at
        a `draft_temperature` above 0 the drafter draws (by default at half of `temperature`, where the bundle's can);
        none of the three changes a token. `stop_token_ids` takes
        the place of the model's own; () stops at none. The text ends before the first of the strings in `stop`, the
        token ids with the token that completes it. `response_format` holds the text to a JSON schema, a regex, a
        grammar or choices (see structured_output). `temperature` 0 takes the likeliest token; above, tokens are
        sampled after `top_k`, `top_p` and `min_p` (see SamplingParameters). `logit_bias`, `bad_token_ids`, `min_tokens`
        and the penalties change the logits of every token before that (see Controls); `logprobs` reports the chosen
        token's log-probability and as many of the likeliest ones'. The same `seed` gives the same answer;
        without one, the answer reports the one drawn for it. Raises RequestError here, not at the first step. The
        generator's own value is the whole answer; it may be dropped at any point.
        """
        sampling = sampling_parameters(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            denoise_steps=denoise_steps,
            controls=request_controls(
                logit_bias=logit_bias,
                bad_token_ids=bad_token_ids,
                min_tokens=min_tokens,
                repetition_penalty=repetition_penalty,
                frequency_penalty=frequency_penalty,
                presence_penalty=presence_penalty,
                logprobs=logprobs,
            ),
        )
        request = self.request(
            prompt,
            max_new_tokens,
            block_size,
            stop_token_ids,
            sampling,
            stop=stop,
            response_format=response_format,
            draft_temperature=draft_temperature,
        )
        return self.run(request)

    def complete(  # noqa: PLR0913, as generate
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
    ) -> Completion:
        """Like `generate`, but returns the whole answer."""
        steps = self.generate(
            prompt,
            max_new_tokens=max_new_tokens,
            block_size=block_size,
            stop_token_ids=stop_token_ids,
            stop=stop,
            response_format=response_format,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            logit_bias=logit_bias,
            bad_token_ids=bad_token_ids,
            min_tokens=min_tokens,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logprobs=logprobs,
            draft_temperature=draft_temperature,
            denoise_steps=denoise_steps,
        )
        return finish(steps)

    def request(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        block_size: int | None,
        stop_token_ids: Collection[int] | None,
        sampling: SamplingParameters = LIKELIEST,
        *,
        stop: str | Sequence[str] | None = None,
        response_format: Mapping[str, Any] | None = None,
        draft_temperature: float | None = None,
    ) -> Request:
        """The checked request in token ids; without a `draft_temperature`, `sampling`'s. Raises RequestError."""
        manifest, limits = self.engine.bundle.manifest, self.engine.limits
        stops = manifest.stop_token_ids if stop_token_ids is None else stop_token_ids
        strings, special = stop_strings(stop), special_tokens(self.tokenizer)
        named = (special[string] for string in strings if string in special)  # the text never shows these
        grammar = self._grammar(response_format)
        ends = frozenset((*token_ids("stop_token_ids", stops), *named))
        sampling = with_draws(with_ends(sampling, ends), draft_temperature, manifest)
        request = Request(
            tokens=self.encoder.encode(prompt),
            max_new_tokens=count("max_new_tokens", max_new_tokens),
            stop_token_ids=ends,
            stop_strings=strings,
            block_size=None if block_size is None else count("block_size", block_size),
            sampling=sampling if grammar is None else constrained(sampling),
            grammar=grammar,
        )
        check_request(request, limits=limits, manifest=manifest)
        self._check_idle()
        return request

    def _grammar(self, response_format: Mapping[str, Any] | None) -> Grammar | None:
        wanted = structured_output(response_format)
        return None if wanted is None else self._grammars.compile(wanted)

    @cached_property
    def _grammars(self) -> "Grammars":
        """Made when first needed: it takes a moment, and a package that not everybody has."""
        try:
            from dflash_runtime.structured.grammars import Grammars
        except ModuleNotFoundError as e:
            raise RequestError(
                f"response_format needs the package {e.name!r}: pip install 'dflash-trt[structured]'"
            ) from e
        manifest, special = self.engine.bundle.manifest, special_tokens(self.tokenizer).values()
        never_text = [*(i for i in manifest.stop_token_ids if i in special), *special, manifest.mask_token_id]
        return Grammars(self.tokenizer, manifest.geometry.vocab_size, never_text[0])

    def forget(self) -> None:
        """Hold no prompt any more: the next request computes its own from the first token.

        Raises RequestError while a generation runs.
        """
        self._check_idle()
        self._loop.slots[_SLOT].forget()

    def _check_idle(self) -> None:
        if self._loop.slots[_SLOT].request is not None:
            raise RequestError("another generation is running on this decoder; finish or close it first")

    def answer(self, request: Request, shown: Collection[str] = ()) -> Answer:
        """An answer to `request`, still empty, for whoever drives the loop.

        Its text has the special tokens named in `shown`; no others.
        """
        return Answer(request, self._new_detokenizer(shown))

    def run(self, request: Request) -> Generator[Step, None, Completion]:
        """Yield a step for every target pass of a checked request; the generator's value is the whole answer."""
        if request.block_size is None:
            self._loop.prepare()  # its time isn't the answer's
        answer = self.answer(request)
        before, begin, seconds = self.engine.timing, perf_counter(), 0.0
        with closing(self._loop.run(_SLOT, request)) as passes:
            for progress in passes:
                step = answer.push(progress)
                seconds += perf_counter() - begin
                if step.finish_reason is not None:
                    break  # whoever sees the last step may use the slot
                yield step
                begin = perf_counter()  # the receiver's time is not ours
        split = time_split(before, self.engine.timing, seconds)
        completion = answer.completion(reused_tokens=self._loop.slots[_SLOT].reused, seconds=split)
        yield step
        return completion


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as e:  # the library has no class of its own for what is wrong with a file
        raise BundleError(f"{file} is not a tokenizer ({e}); export the pair again") from e


def sampling_parameters(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    denoise_steps: int = 1,
    controls: Controls = NEUTRAL,
) -> SamplingParameters:
    """The checked parameters, with a fresh seed of 32 bits where none is given. Raises RequestError."""
    return SamplingParameters(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=secrets.randbits(32) if seed is None else seed,
        denoise_steps=denoise_steps,
        controls=controls,
    )


def request_controls(
    *,
    logit_bias: Mapping[int, float] | None,
    bad_token_ids: Collection[int],
    min_tokens: int,
    repetition_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
    logprobs: int | None,
) -> Controls:
    """The checked controls. Raises RequestError."""
    return Controls(
        logit_bias=biases({} if logit_bias is None else logit_bias),
        bad_token_ids=frozenset(token_ids("bad_token_ids", bad_token_ids)),
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logprobs=logprobs,
    )


def with_ends(sampling: SamplingParameters, stop_token_ids: frozenset[int]) -> SamplingParameters:
    """The same, told which tokens must wait for min_tokens."""
    if not sampling.controls.min_tokens:
        return sampling
    return replace(sampling, controls=replace(sampling.controls, end_token_ids=stop_token_ids))


def constrained(sampling: SamplingParameters) -> SamplingParameters:
    """The same, told that a grammar's masks will come."""
    return replace(sampling, controls=replace(sampling.controls, constrained=True))


def finish(steps: Generator[Step, None, Completion], on_step: Callable[[Step], object] = lambda _: None) -> Completion:
    """Run `steps` to its end, showing each to `on_step`; returns the whole answer."""
    while True:
        try:
            on_step(next(steps))
        except StopIteration as end:
            completion: Completion = end.value
            return completion
