"""Speed with the drafter over plain decoding as one thing varies: requests together, the prompt's length, the block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from dflash_engines.backend import Options
from dflash_runtime.bench.offline import WARM_UP_TOKENS, Told
from dflash_runtime.bench.system import PLAIN, DecoderSystem, Run
from dflash_runtime.bench.tally import tally
from dflash_runtime.decoder import Decoder
from dflash_runtime.serving import ConcurrentDecoder

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of what varies. Speeds are tokens a second over everything, prefill included."""

    value: int
    drafted: float | None  # None: the answers differ from plain decoding's, so there is no speed to tell
    plain: float
    acceptance_length: float
    lossless: bool

    @property
    def ratio(self) -> float | None:
        """Above 1, drafting pays."""
        return None if self.drafted is None else self.drafted / self.plain


def _point(value: int, drafted: Sequence[Sequence[Run]], plain: Sequence[Sequence[Run]]) -> Point:
    """From runs by repeat and prompt; the time of a repeat is that of all its prompts."""
    lossless = [r.token_ids for r in drafted[0]] == [r.token_ids for r in plain[0]]
    found = [run.completion for repeat in drafted for run in repeat if run.completion is not None]
    return Point(
        value=value,
        drafted=_speed(drafted) if lossless else None,
        plain=_speed(plain),
        acceptance_length=tally(found).acceptance_length,
        lossless=lossless,
    )


def _speed(repeats: Sequence[Sequence[Run]]) -> float:
    return median(sum(len(r.token_ids) for r in runs) / sum(r.seconds for r in runs) for runs in repeats)


def sweep_block_sizes(
    decoder: Decoder, prompts: Sequence[Tokens], *, new_tokens: int, repeats: int, told: Told
) -> list[Point]:
    """Every block size the engine has, in turn on each prompt."""
    sizes = [size for size in sorted(decoder.engine.limits.block_sizes) if size > 1]
    systems = [DecoderSystem(name=str(size), decoder=decoder, block_size=size) for size in (1, *sizes)]
    runs = [_in_turn(systems, prompts, new_tokens, lambda: told("block sizes")) for _ in range(repeats)]
    plain = [repeat["1"] for repeat in runs]
    return [_point(size, [repeat[str(size)] for repeat in runs], plain) for size in sizes]


def _in_turn(
    systems: Sequence[DecoderSystem], prompts: Sequence[Tokens], new_tokens: int, told: Callable[[], object]
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {system.name: [] for system in systems}
    for prompt in prompts:
        told()
        for system in systems:
            runs[system.name].append(system.generate(prompt, new_tokens))
    return runs


def sweep_context(
    decoder: Decoder, text: Tokens, lengths: Sequence[int], *, new_tokens: int, repeats: int, told: Told
) -> list[Point]:
    """Prompts of each length, cut from the end of `text`, so that the question stands where it belongs."""
    sizes = {PLAIN: 1, "drafted": max(decoder.engine.limits.block_sizes)}
    systems = [DecoderSystem(name=name, decoder=decoder, block_size=size) for name, size in sizes.items()]
    points = []
    for length in lengths:
        prompt = [text[len(text) - length :]]
        runs = [_in_turn(systems, prompt, new_tokens, lambda: told("context")) for _ in range(repeats)]
        points.append(_point(length, [r["drafted"] for r in runs], [r[PLAIN] for r in runs]))
    return points


def context_text(decoder: Decoder, questions: Sequence[str], length: int) -> Tokens:
    """At least `length` tokens of one long chat message that ends with its last question."""
    text = "\n\n".join(questions)
    while len(found := decoder.encoder.encode(_as_prompt(decoder, text))) < length:
        text = f"{text}\n\n{text}"
    return found


def _as_prompt(decoder: Decoder, text: str) -> str | list[dict[str, str]]:
    return text if decoder.encoder.template is None else [{"role": "user", "content": text}]


def sweep_concurrency(
    bundle: Path, options: Options, backend: str, prompts: Sequence[Tokens], slots: Sequence[int], *,
    new_tokens: int, told: Told,
) -> list[Point]:  # fmt: skip
    """All prompts at once, of which `value` run together; the rest waits. Tokens a second over all of them."""
    points = []
    for count in slots:
        told(f"{count} together")
        with ConcurrentDecoder.load(
            bundle, backend=backend, slots=count, queue_size=len(prompts), threads=options.threads,
            max_len=options.max_len,
        ) as decoder:  # fmt: skip
            _together(decoder, prompts[:count], WARM_UP_TOKENS, None)
            plain = _together(decoder, prompts, new_tokens, 1)
            drafted = _together(decoder, prompts, new_tokens, None)
        points.append(_point(count, [drafted], [plain]))
    return points


def _together(
    decoder: ConcurrentDecoder, prompts: Sequence[Tokens], new_tokens: int, block_size: int | None
) -> list[Run]:
    """The answers; the wall time is shared out evenly among them."""
    requests = [decoder.texts.request(prompt, new_tokens, block_size, None) for prompt in prompts]
    begin = perf_counter()
    answers = [decoder.generate(request) for request in requests]
    found = [answer.finish() for answer in answers]
    each = (perf_counter() - begin) / len(found)
    return [Run(token_ids=f.token_ids, seconds=each, completion=f) for f in found]
