"""Compiled programs against PyTorch on real prompts: the gate that an export has to pass.

The target's reference is transformers itself, recorded before its seams are opened; the drafter's is its torch module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dflash_engines import contract
from dflash_engines.backend import Programs
from dflash_engines.contract import AcceptVariant, Limits
from dflash_engines.errors import CheckpointError
from dflash_engines.golden import Arrays, Call, Runner
from dflash_engines.host_engine import declared_programs
from dflash_engines.manifest import Manifest, Parity, Precision
from dflash_export.checkpoint import TargetModel
from dflash_export.programs.build import Modules
from dflash_export.pytorch_backend import PytorchPrograms

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How far a program may be from PyTorch."""

    largest_difference: float  # of a logit, in standard deviations of logits; of a drafted token's confidence
    argmax_agreement: float


# A drafter that is a little off costs acceptance, never a wrong token; its int8 gate only catches what is broken.
GATES: dict[tuple[Precision | Literal["w8a8"], str], Gate] = {
    ("fp32", "target"): Gate(largest_difference=1e-3, argmax_agreement=0.999),
    ("fp32", "draft"): Gate(largest_difference=5e-3, argmax_agreement=0.995),
    ("int8", "target"): Gate(largest_difference=1.0, argmax_agreement=0.95),
    ("int8", "draft"): Gate(largest_difference=0.5, argmax_agreement=0.80),
    ("w8a8", "target"): Gate(largest_difference=2.5, argmax_agreement=0.80),
    ("w8a8", "draft"): Gate(largest_difference=0.8, argmax_agreement=0.50),
    ("fp16", "target"): Gate(largest_difference=0.1, argmax_agreement=0.98),
    ("fp16", "draft"): Gate(largest_difference=0.1, argmax_agreement=0.95),
    ("bf16", "target"): Gate(largest_difference=0.5, argmax_agreement=0.95),
    ("bf16", "draft"): Gate(largest_difference=0.5, argmax_agreement=0.90),
    ("int4", "target"): Gate(largest_difference=3.0, argmax_agreement=0.60),
    ("int4", "draft"): Gate(largest_difference=1.0, argmax_agreement=0.40),
}
SAME_TOKENS = Gate(largest_difference=0.0, argmax_agreement=1.0)  # for accept, which has no weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """transformers' logits [S,V] for each prompt."""

    prompts: tuple[Tokens, ...]
    logits: tuple[NDArray[np.float32], ...]

    @property
    def scale(self) -> float:
        """The logits' standard deviation."""
        return float(np.concatenate([x.ravel() for x in self.logits]).std())


def record_reference(target: TargetModel, prompts: Sequence[Tokens]) -> Reference:
    """Run transformers' own forward pass on each prompt."""
    with torch.no_grad():
        logits = [target.model(torch.tensor([list(p)])).logits[0].float().numpy() for p in prompts]
    return Reference(prompts=tuple(prompts), logits=tuple(logits))


def target_calls(prompt: Tokens, chunk: int) -> list[Call]:
    """The prompt in chunks, logits of every row."""
    calls = []
    for start in range(0, len(prompt), chunk):
        tokens = np.array([prompt[start : start + chunk]], np.int64)
        rows = tokens.shape[1]
        calls.append(Call(program="target", first_slot=0, inputs={
            "tokens": tokens, "start": np.array([start]), "length": np.array([start + rows]),
            "rows": np.arange(rows)[None]}))  # fmt: skip
    return calls


def draft_call(prompt: Tokens, start: int, block_size: int, mask_token_id: int, program: str = "draft") -> Call:
    """A block drafted with prompt[start] as anchor; each start has noise of its own."""
    tokens = np.full((1, block_size), mask_token_id, np.int64)
    tokens[0, 0] = prompt[start]
    at = {"tokens": tokens, "start": np.array([start]), "length": np.array([start + block_size])}
    noise = {"seed": np.array([start]), "draft_temperature": np.array([0.8], np.float32)}
    return Call(program=program, first_slot=0, inputs=at | (noise if program == "draft_noise" else {}))


def worst(difference: float, off: NDArray[np.floating[Any]]) -> float:
    """The larger of the two; NaN, once seen, stays."""
    return float(np.maximum(difference, np.abs(off).max()))


def target_parity(reference: Reference, runner: Runner, chunk: int) -> Parity:
    """The compiled target against transformers."""
    difference, agree, rows = 0.0, 0, 0
    for prompt, wanted in zip(reference.prompts, reference.logits, strict=True):
        found = np.concatenate([runner.run(call)["logits"][0] for call in target_calls(prompt, chunk)])
        difference = worst(difference, found - wanted)
        agree += int((found.argmax(-1) == wanted.argmax(-1)).sum())
        rows += len(wanted)
    return Parity(largest_difference=difference / reference.scale, argmax_agreement=agree / rows, rows=rows)


def draft_parity(
    reference: Reference, compiled: Runner, oracle: Runner, block_size: int, mask_token_id: int
) -> dict[str, Parity]:
    """The compiled drafters against their torch modules, after the compiled and the torch target's prefill."""
    names = [name for name in compiled.arena.programs if name.startswith("draft")]
    found = dict.fromkeys(names, Parity(largest_difference=0.0, argmax_agreement=0.0, rows=0))
    for prompt in reference.prompts:
        for runner in (compiled, oracle):
            for call in target_calls(prompt, len(prompt)):
                runner.run(call)
        for start in range(2, len(prompt), 7)[::-1]:  # from the end: a block leaves its rows behind
            for name in names:
                call = draft_call(prompt, start, block_size, mask_token_id, name)
                found[name] = _with_block(found[name], compiled.run(call), oracle.run(call))
    return found


def _with_block(before: Parity, found: Arrays, wanted: Arrays) -> Parity:
    """The tally with another block; confidences are compared where both drafted the same token."""
    same = (found["block"] == wanted["block"])[:, 1:]
    off = np.where(same, (found["confidence"] - wanted["confidence"])[:, 1:], 0)
    rows = before.rows + same.size
    return Parity(
        largest_difference=worst(before.largest_difference, off),
        argmax_agreement=(before.argmax_agreement * before.rows + int(same.sum())) / rows,
        rows=rows,
    )


def accept_call(variant: AcceptVariant, vocab_size: int, rows: int, seed: int) -> Call:
    """Random logits and rules. No draft is right, so that every row's token shows in `sampled` alone."""
    random, words = np.random.default_rng(seed), contract.weightless(vocab_size).mask_words
    inputs: dict[str, NDArray[Any]] = {
        "logits": random.normal(scale=3, size=(1, rows, vocab_size)).astype(np.float32),
        "block": np.zeros((1, rows), np.int64),
        "start": random.integers(0, 1000, 1),
        "forced": np.array([1]),
        "count": np.array([rows]),
        "limit": np.array([2000]),
        "seed": random.integers(0, 2**60, 1),
        "temperature": random.uniform(0.3, 1.5, 1).astype(np.float32),
        "min_p": random.choice([0.0, 0.02], 1).astype(np.float32),
        "top_k": random.choice([0, 1, 40], 1),
        "top_p": random.choice([0.5, 0.95, 1.0], 1).astype(np.float32),
        "grammar_mask": random.integers(-(2**31), 2**31, (1, rows, words), np.int32),
        "min_end": random.integers(0, 1000, 1),
        "bias": random.choice([0, 0, 1.5, -np.inf], (1, 2, vocab_size)).astype(np.float32),
        "in_prompt": random.random((1, vocab_size)) < 0.1,
        "generated": (random.integers(0, 3, (1, vocab_size)) * (random.random(vocab_size) < 0.1)).astype(np.float32),
        "repetition_penalty": random.choice([1.0, 1.3], 1).astype(np.float32),
        "frequency_penalty": random.choice([0.0, 0.7], 1).astype(np.float32),
        "presence_penalty": random.choice([0.0, -0.2], 1).astype(np.float32),
    }
    used = [b.name for b in contract.accept(contract.weightless(vocab_size), variant).inputs]
    return Call(program=variant.name, first_slot=0, inputs={name: inputs[name] for name in used})


def accept_parity(variant: AcceptVariant, compiled: Runner, oracle: Runner, vocab_size: int) -> Parity:
    """A compiled variant of accept against its torch module: tokens have to be the same."""
    rows = max(compiled.limits.block_sizes)
    calls = [accept_call(variant, vocab_size, rows, seed) for seed in range(6)]
    agree = sum(int((compiled.run(c)["sampled"] == oracle.run(c)["sampled"]).sum()) for c in calls)
    return Parity(largest_difference=0.0, argmax_agreement=agree / (rows * len(calls)), rows=rows * len(calls))


def check_parity(reference: Reference, programs: Programs, modules: Modules, manifest: Manifest) -> dict[str, Parity]:
    """Parity of `target` and `draft`. Raises CheckpointError when a gate isn't passed."""
    longest = max(map(len, reference.prompts))
    config = modules.draft.drafter.config
    block_size, mask = config.block_size, config.mask_token_id
    limits = Limits(max_len=longest + block_size, prefill_chunk=longest, block_sizes=(block_size,))
    declared, in_fp32 = declared_programs(manifest), manifest.model_copy(update={"geometry": modules.geometry})
    compiled = Runner(programs, declared, limits)
    oracle = Runner(PytorchPrograms(modules), declared_programs(in_fp32), limits)
    found = {
        "target": target_parity(reference, compiled, chunk=min(33, longest)),
        **draft_parity(reference, compiled, oracle, block_size, mask),
        **{v.name: accept_parity(v, compiled, oracle, manifest.geometry.vocab_size) for v in modules.accepts},
    }
    for variant in modules.accepts:
        _pass(variant.name, found[variant.name], SAME_TOKENS)
    _pass("target", found["target"], _gate(manifest, manifest.precision, "target"))
    for name in (program.name for program in declared if program.name.startswith("draft")):
        _pass(name, found[name], _gate(manifest, manifest.draft_precision, "draft"))
    return found


def _gate(manifest: Manifest, precision: Precision, program: str) -> Gate:
    """int8 is of weights alone in ONNX Runtime; elsewhere a product's inputs are int8 as well."""
    w8a8 = precision == "int8" and manifest.backend != "onnxruntime"
    return GATES["w8a8" if w8a8 else precision, program]


def _pass(program: str, parity: Parity, gate: Gate) -> None:
    if parity.largest_difference <= gate.largest_difference and parity.argmax_agreement >= gate.argmax_agreement:
        return
    raise CheckpointError(
        f"{program} does not compute what PyTorch does: off by up to {parity.largest_difference:.2g} "
        f"(allowed {gate.largest_difference:g}), {parity.argmax_agreement:.2%} of the best tokens agree "
        f"(needed {gate.argmax_agreement:.2%}); no bundle was written"
    )
