"""What drafting gains, recorded and replayed: block sizes, drawn drafts, denoising steps.

python scripts/adaptive.py record build/demo --out recording.npz
python scripts/adaptive.py replay build/demo recording.npz
python scripts/adaptive.py wall build/demo
python scripts/adaptive.py drafts build/demo --temperature 0.6 --draft-temperatures 0,0.3,0.6
python scripts/adaptive.py drafts build/demo --denoise-steps 1,2,4
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.command import run_command
from dflash_engines.denoise import keep_surest, steps_for
from dflash_engines.golden import Call, Runner
from dflash_engines.host_engine import HostEngine, declared_programs, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime.cost_cache import cached_costs
from dflash_runtime.cost_table import CostTable
from dflash_runtime.decoder import Decoder
from dflash_runtime.prompt import Prompt
from dflash_runtime.replay import Answer, Recording, adaptive, fixed, together

EVALUATION = Path(__file__).parents[1] / "runtime" / "dflash_runtime" / "evaluation"
FOREIGN = Path(__file__).parent / "foreign_prompts.jsonl"
HOSTILE = ("foreign", "random")  # texts that a drafter can't guess
EVALUATION_SETS = "gsm8k,humaneval,mbpp,mt_bench"
ALL_SETS = ",".join((EVALUATION_SETS, *HOSTILE))
RANDOM_TEMPERATURE = 2.0  # of answers that are hardly better than random tokens
app = typer.Typer(add_completion=False, rich_markup_mode="rich", help=__doc__)
BundleFolder = Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.")]
Sets = Annotated[str, typer.Option(help="Sets of prompts.")]
Count = Annotated[int, typer.Option("--prompts", help="Of each set.")]
NewTokens = Annotated[int, typer.Option(help="Longest answer.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: all.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A way of drafting."""

    draft_temperature: float = 0.0
    denoise_steps: int = 1


LIKELIEST = Drafting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt with the target's answer to it."""

    set_name: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    seed: int


class Bench:
    """A bundle, to decode with and to call its programs one by one."""

    def __init__(self, folder: Path, threads: int | None) -> None:
        bundle, options = Bundle.open(folder), Options(slots=1, threads=threads)
        programs, self.limits = OnnxRuntimePrograms(bundle, options), host_limits(bundle, options)
        engine = HostEngine(bundle, programs, self.limits)
        self.costs = cached_costs(engine, backend="onnxruntime", threads=threads)
        self.decoder = Decoder(engine, self.costs)
        self.runner = Runner(programs, declared_programs(bundle.manifest), self.limits)
        self.mask = bundle.manifest.mask_token_id

    def prompts(self, name: str, count: int) -> Iterator[Prompt]:
        """The first prompts of a set, as chats; those of "random" are random ids."""
        if name == "random":
            for seed in range(count):
                yield [int(i) for i in np.random.default_rng(seed).integers(1000, 20000, 40)]
            return
        file = FOREIGN if name == "foreign" else EVALUATION / f"{name}.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines()[:count]:
            yield [{"role": "user", "content": json.loads(line)["turns"][0]}]

    def texts(self, sets: Sequence[str], count: int, new_tokens: int, temperature: float) -> Iterator[Text]:
        """Prompts with plain answers; prompts of "random" are answered by next to random tokens."""
        for name in sets:
            for seed, prompt in enumerate(track(list(self.prompts(name, count)), name, console=Console(stderr=True))):
                ids = self.decoder.encoder.encode(prompt)
                used = RANDOM_TEMPERATURE if name == "random" else temperature
                answer = self.decoder.complete(
                    list(ids), max_new_tokens=new_tokens, block_size=1, temperature=used, seed=seed
                )
                yield Text(set_name=name, tokens=(*ids, *answer.token_ids), prompt_tokens=len(ids), seed=seed)

    def prefill(self, text: Text) -> None:
        """Write the rows of all of its tokens, the drafter's context among them."""
        chunk = self.limits.prefill_chunk
        for start in range(0, len(text.tokens), chunk):
            rows = text.tokens[start : start + chunk]
            rows = rows if len(rows) > 1 else (*rows, self.mask)
            self.runner.run(Call(program="target", first_slot=0, inputs={
                "tokens": np.array([rows]), "start": np.array([start]), "length": np.array([start + len(rows)]),
                "rows": np.array([[0]])}))  # fmt: skip

    def drafts(self, text: Text, start: int, size: int, how: Drafting) -> list[int]:
        """What the drafter proposes after the token at `start`, from the context rows before it."""
        block = np.full((1, size), self.mask)
        block[0, 0] = text.tokens[start]
        drawn = {"seed": np.array([text.seed]), "draft_temperature": np.array([how.draft_temperature], np.float32)}
        program, noise = ("draft_noise", drawn) if how.draft_temperature else ("draft", {})
        steps = steps_for(size, how.denoise_steps)
        for step in range(1, steps + 1):
            at = {"tokens": block, "start": np.array([start]), "length": np.array([start + size])}
            found = self.runner.run(Call(program=program, first_slot=0, inputs=at | noise))
            block = keep_surest(block, found["block"], found["confidence"], part=step / steps, mask_token_id=self.mask)
        return [int(token) for token in block[0, 1:]]

    def accepted(self, text: Text, ways: Sequence[tuple[int, Drafting]]) -> NDArray[np.uint8]:
        """[anchors, ways]: drafts kept with each token of the answer but the last as anchor."""
        self.prefill(text)
        anchors = range(text.prompt_tokens, len(text.tokens) - 1)
        found = np.zeros((len(anchors), len(ways)), np.uint8)
        for start in reversed(anchors):  # from the end: a block leaves its rows behind
            for place, (size, how) in enumerate(ways):
                proposed = self.drafts(text, start, size, how)
                found[start - text.prompt_tokens, place] = matching(proposed, text.tokens[start + 1 :])
        return found


def matching(proposed: Sequence[int], right: Sequence[int]) -> int:
    """Leading tokens that are right; beyond the answer's end, none is."""
    pairs = zip(proposed, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(proposed), len(right)))


@app.command()
def record(
    bundle: BundleFolder,
    out: Annotated[Path, typer.Option(help="File to write, .npz.")],
    count: Count = 8,
    max_new_tokens: NewTokens = 128,
    sets: Sets = ALL_SETS,
    threads: Threads = None,
) -> None:
    """Record what each block size would have gained at every token of plain greedy answers."""
    bench = Bench(bundle, threads)
    sizes = bench.limits.block_sizes
    ways = [(size, LIKELIEST) for size in sizes]
    answers = [
        Answer(set_name=text.set_name, prompt_tokens=text.prompt_tokens, accepted=bench.accepted(text, ways))
        for text in bench.texts(sets.split(","), count, max_new_tokens, temperature=0.0)
    ]
    Recording(block_sizes=sizes, answers=tuple(answers)).save(out)


@app.command()
def replay(
    bundle: BundleFolder,
    recording: Annotated[Path, typer.Argument(help="What `record` wrote.")],
    costs: Annotated[Path | None, typer.Option(help="A cost table as JSON. Default: measured on this machine.")] = None,
    threads: Threads = None,
) -> None:
    """Decoding speed of each fixed block size and of the adaptive rule over plain, by set and on their mixture."""
    if costs is None:
        table = Bench(bundle, threads).costs()
    else:
        table = CostTable.from_json(json.loads(costs.read_text(encoding="utf-8")))
    recorded = Recording.load(recording)
    shown = Table(
        "text", *map(str, recorded.block_sizes), "adaptive", "over the best", title="speed over plain decoding"
    )
    for name, part in parts(recorded).items():
        plain = together(fixed(part, table, 1)).tokens_per_second
        by_size = [together(fixed(part, table, size)).tokens_per_second / plain for size in part.block_sizes]
        chosen = together(adaptive(part, table)).tokens_per_second / plain
        shown.add_row(name, *(f"{x:.2f}" for x in by_size), f"{chosen:.2f}", f"{chosen / max(1.0, *by_size):.3f}")
    Console().print(shown)


def parts(recording: Recording) -> dict[str, Recording]:
    """The answers of each set, and those of all evaluation sets, one of each in turn."""
    names = dict.fromkeys(answer.set_name for answer in recording.answers)
    by_set = {name: tuple(a for a in recording.answers if a.set_name == name) for name in names}
    turns = itertools.zip_longest(*(answers for name, answers in by_set.items() if name not in HOSTILE))
    by_set["mixture"] = tuple(answer for turn in turns for answer in turn if answer is not None)
    return {
        name: Recording(block_sizes=recording.block_sizes, answers=answers)
        for name, answers in by_set.items()
        if answers
    }


@app.command()
def wall(
    bundle: BundleFolder,
    count: Count = 2,
    max_new_tokens: NewTokens = 96,
    sets: Sets = ALL_SETS,
    threads: Threads = None,
) -> None:
    """Measured speed of the largest fixed block and the adaptive rule over plain, each prompt three ways in turn.

    By the clock on the wall, and by the process's own processor time, which other work on the machine doesn't stretch.
    """
    bench = Bench(bundle, threads)
    largest = max(bench.limits.block_sizes)
    shown = Table("text", f"block {largest}", "adaptive", f"block {largest}, processor", "adaptive, processor",
                  title="speed over plain decoding")  # fmt: skip
    bench.decoder.complete([1000] * 20, max_new_tokens=4)  # costs are measured here, not below
    for name in sets.split(","):
        seconds: dict[int | None, NDArray[np.float64]] = {size: np.zeros(2) for size in (1, largest, None)}
        for seed, prompt in enumerate(track(list(bench.prompts(name, count)), name, console=Console(stderr=True))):
            for size, taken in seconds.items():
                taken += decoding_seconds(bench.decoder, prompt, size, name == "random", seed, max_new_tokens)
        ratios = [seconds[1] / seconds[size] for size in (largest, None)]
        shown.add_row(name, *(f"{ratio[clock]:.2f}" for clock in (0, 1) for ratio in ratios))
    Console().print(shown)


def decoding_seconds(
    decoder: Decoder, prompt: Prompt, block_size: int | None, at_random: bool, seed: int, max_new_tokens: int
) -> NDArray[np.float64]:
    """By the wall's clock and by the processor's, once the prompt is computed."""
    temperature = RANDOM_TEMPERATURE if at_random else 0.0
    decoder.forget()
    for new_tokens in (1, max_new_tokens):
        begin = np.array([perf_counter(), process_time()])
        decoder.complete(prompt, max_new_tokens=new_tokens, block_size=block_size, temperature=temperature, seed=seed)
    taken: NDArray[np.float64] = np.array([perf_counter(), process_time()]) - begin
    return taken


@app.command()
def drafts(
    bundle: BundleFolder,
    temperature: Annotated[float, typer.Option(help="Of the answers.")] = 0.0,
    draft_temperatures: Annotated[str, typer.Option(help="To compare, as 0,0.6.")] = "0",
    denoise_steps: Annotated[str, typer.Option(help="To compare, as 1,2,4.")] = "1",
    count: Count = 8,
    max_new_tokens: NewTokens = 64,
    sets: Sets = EVALUATION_SETS,
    threads: Threads = None,
) -> None:
    """Tokens gained by a pass of the largest block, and shares kept by position, for each way of drafting."""
    bench = Bench(bundle, threads)
    ways = [
        Drafting(draft_temperature=float(drawn), denoise_steps=int(steps))
        for drawn in draft_temperatures.split(",")
        for steps in denoise_steps.split(",")
    ]
    sized = [(max(bench.limits.block_sizes), how) for how in ways]
    texts = bench.texts(sets.split(","), count, max_new_tokens, temperature)
    accepted = np.concatenate([bench.accepted(text, sized) for text in texts])
    heading = f"temperature {temperature:g}, {len(accepted)} anchors of {count * len(sets.split(','))} answers"
    shown = Table("draft temperature", "steps", "tokens a pass", "kept by position", title=heading)
    for how, kept in zip(ways, accepted.T, strict=True):
        shares = " ".join(f"{(kept > position).mean():.2f}" for position in range(sized[0][0] - 1))
        shown.add_row(f"{how.draft_temperature:g}", str(how.denoise_steps), f"{1 + kept.mean():.3f}", shares)
    Console().print(shown)


def main() -> None:
    """The script."""
    run_command(app, extra="ort")


if __name__ == "__main__":
    main()
