"""The contract: every binding of `target`, `draft` and `accept`, of every variant, declared once.

Tracing, optimisation profiles, buffers, bindings and the table in docs/contract.md are derived from here.
Dimensions are named: B slots, S rows in, R rows out, K block, V vocabulary, M cache rows, N history rows.
This module knows names, types and shapes; it knows no backend and touches no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dflash_engines.accept_variant import ACCEPT_VARIANTS as ACCEPT_VARIANTS
from dflash_engines.accept_variant import FILTERED as FILTERED
from dflash_engines.accept_variant import GREEDY as GREEDY
from dflash_engines.accept_variant import SAMPLING as SAMPLING
from dflash_engines.accept_variant import AcceptVariant as AcceptVariant
from dflash_engines.accept_variant import cheapest as cheapest
from dflash_engines.errors import ContractError


class Dtype(StrEnum):
    """Element types of bindings; the value is ONNX's name in lower case."""

    INT64 = "int64"
    INT32 = "int32"
    FLOAT = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    BOOL = "bool"

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return {"int64": 8, "int32": 4, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}[self.value]


class Dim(StrEnum):
    """The dynamic dimensions."""

    SLOTS = "B"
    ROWS_IN = "S"
    ROWS_OUT = "R"
    BLOCK = "K"
    CACHE_ROWS = "M"


Shape = tuple[Dim | int, ...]
MASK_WORD_BITS = 32  # a grammar mask packs this many tokens into one int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One named tensor at a program's border."""

    name: str
    dtype: Dtype
    shape: Shape
    meaning: str
    updates: str = ""  # an output written over this input, in place


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program's name and its bindings, in graph order."""

    name: str
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]

    @property
    def updated(self) -> Mapping[str, str]:
        """Output name to the input that it overwrites."""
        return {b.name: b.updates for b in self.outputs if b.updates}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Key/value heads and head sizes of one layer's cache."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes of a pair that bindings depend on."""

    vocab_size: int
    hidden_size: int
    taps: int
    target_caches: tuple[CacheShape, ...]
    draft_caches: tuple[CacheShape, ...]
    cache_dtype: Dtype = Dtype.FLOAT

    @property
    def mask_words(self) -> int:
        """int32 words of one row of a grammar mask."""
        return -(-self.vocab_size // MASK_WORD_BITS)


def weightless(vocab_size: int) -> Geometry:
    """Enough of a geometry for programs that have neither weights nor caches."""
    return Geometry(vocab_size=vocab_size, hidden_size=0, taps=0, target_caches=(), draft_caches=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine is sized for."""

    max_len: int  # tokens a slot can hold, prompt included
    max_batch: int = 1
    prefill_chunk: int = 128
    block_sizes: tuple[int, ...] = (8,)

    def __post_init__(self) -> None:
        if not self.block_sizes or min(self.block_sizes) < 1:
            raise ContractError(f"block_sizes must be one or more sizes of at least 1, not {self.block_sizes}")
        if min(self.max_batch, self.max_len) < 1:
            raise ContractError(f"max_batch {self.max_batch} and max_len {self.max_len} must be at least 1")
        if self.prefill_chunk < 2:
            raise ContractError(f"prefill_chunk must be at least 2 rows, not {self.prefill_chunk}")

    @property
    def cache_rows(self) -> int:
        """M: the tokens a slot can hold, and guard rows that run-ahead may write but nobody reads."""
        return self.max_len + 2 * max(*self.block_sizes, 2)


B, S, R, K, M = Dim.SLOTS, Dim.ROWS_IN, Dim.ROWS_OUT, Dim.BLOCK, Dim.CACHE_ROWS
_START = Binding(name="start", dtype=Dtype.INT64, shape=(B,), meaning="cache row of the first token of this call")
_LENGTH = Binding(name="length", dtype=Dtype.INT64, shape=(B,), meaning="cache rows attended; 1 for an idle slot")


def caches(kind: str, shapes: tuple[CacheShape, ...], dtype: Dtype) -> tuple[tuple[Binding, ...], tuple[Binding, ...]]:
    """Input and output bindings of the `kind` ("target" or "draft") caches, layer by layer, key before value."""
    inputs = tuple(
        Binding(
            name=f"{kind}_{part}_{layer}",
            dtype=dtype,
            shape=(B, shape.kv_heads, M, shape.head_dim),
            meaning=f"{kind} layer {layer} {part} cache; row p belongs to token p",
        )
        for layer, shape in enumerate(shapes)
        for part in ("key", "value")
    )
    outputs = tuple(
        Binding(name=f"new_{b.name}", dtype=dtype, shape=b.shape, updates=b.name, meaning=f"{b.name}, in place")
        for b in inputs
    )
    return inputs, outputs


def target(geometry: Geometry, *, hidden_output: bool = False) -> Program:
    """The target: S tokens in, logits of R chosen rows out; writes its own and the drafter's context K/V."""
    own_in, own_out = caches("target", geometry.target_caches, geometry.cache_dtype)
    draft_in, draft_out = caches("draft", geometry.draft_caches, geometry.cache_dtype)
    hidden = Binding(name="hidden", dtype=Dtype.FLOAT, shape=(B, S, geometry.taps * geometry.hidden_size),
                     meaning="tapped hidden states, concatenated in the order of target_layer_ids")  # fmt: skip
    return Program(
        name="target",
        inputs=(
            Binding(name="tokens", dtype=Dtype.INT64, shape=(B, S), meaning="token ids"),
            _START,
            _LENGTH,
            Binding(name="rows", dtype=Dtype.INT64, shape=(B, R), meaning="which of the S rows get logits"),
            *own_in,
            *draft_in,
        ),
        outputs=(
            Binding(
                name="logits",
                dtype=Dtype.FLOAT,
                shape=(B, R, geometry.vocab_size),
                meaning="next-token logits",
            ),
            *((hidden,) if hidden_output else ()),
            *own_out,
            *draft_out,
        ),
    )


def draft(geometry: Geometry, *, noise: bool = False) -> Program:
    """The drafter: a block with masks in, the block filled out; its K/V lie over rows that `target` rewrites."""
    cache_in, cache_out = caches("draft", geometry.draft_caches, geometry.cache_dtype)
    drawn = (
        Binding(name="seed", dtype=Dtype.INT64, shape=(B,), meaning="the request's noise seed, shared with accept"),
        Binding(name="draft_temperature", dtype=Dtype.FLOAT, shape=(B,), meaning="0 drafts the most likely token"),
    )
    return Program(
        name="draft_noise" if noise else "draft",
        inputs=(
            Binding(
                name="tokens",
                dtype=Dtype.INT64,
                shape=(B, K),
                meaning="anchor, then mask (or tokens to keep)",
            ),
            _START,
            _LENGTH,
            *(drawn if noise else ()),
            *cache_in,
        ),
        outputs=(
            Binding(name="block", dtype=Dtype.INT64, shape=(B, K), meaning="anchor and drafted tokens"),
            Binding(
                name="confidence",
                dtype=Dtype.FLOAT,
                shape=(B, K),
                meaning="the drafter's probability of each",
            ),
            *cache_out,
        ),
    )


def accept(geometry: Geometry, variant: AcceptVariant = GREEDY) -> Program:
    """Acceptance: logits and block in, the target's own tokens and how many drafted ones agree out."""
    return Program(
        name=variant.name,
        inputs=(
            Binding(
                name="logits",
                dtype=Dtype.FLOAT,
                shape=(B, R, geometry.vocab_size),
                meaning="next-token logits",
            ),
            Binding(name="block", dtype=Dtype.INT64, shape=(B, R), meaning="the tokens whose logits these are"),
            _START,
            Binding(
                name="forced",
                dtype=Dtype.INT64,
                shape=(B,),
                meaning="leading tokens known right (the anchor)",
            ),
            Binding(name="count", dtype=Dtype.INT64, shape=(B,), meaning="rows in use; 0 for an idle slot"),
            Binding(name="limit", dtype=Dtype.INT64, shape=(B,), meaning="next_start never passes this row"),
            *_rule_inputs(geometry, variant),
        ),
        outputs=(
            Binding(name="sampled", dtype=Dtype.INT64, shape=(B, R), meaning="the target's token after each row"),
            Binding(name="accepted", dtype=Dtype.INT64, shape=(B,), meaning="drafted tokens that are kept"),
            Binding(
                name="next_tokens",
                dtype=Dtype.INT64,
                shape=(B, R),
                meaning="the next block: bonus, then mask",
            ),
            Binding(name="next_start", dtype=Dtype.INT64, shape=(B,), meaning="the row of the bonus token"),
            Binding(name="next_length", dtype=Dtype.INT64, shape=(B,), meaning="rows the next block attends to"),
            Binding(name="finite", dtype=Dtype.BOOL, shape=(B,), meaning="no NaN or infinity in the rows in use"),
            *_logprob_outputs(variant),
        ),
    )


def rule_names(variant: AcceptVariant) -> tuple[str, ...]:
    """The names of the inputs that say how to decode, in graph order."""
    return tuple(b.name for b in _rule_inputs(weightless(0), variant))


def _rule_inputs(geometry: Geometry, variant: AcceptVariant) -> tuple[Binding, ...]:
    """Inputs that the request's decoding rules need, beyond the greedy ones."""
    sampling = (
        Binding(name="seed", dtype=Dtype.INT64, shape=(B,), meaning="of the noise, 0..2^60-1"),
        Binding(name="temperature", dtype=Dtype.FLOAT, shape=(B,), meaning="below 1e-5, the likeliest token is taken"),
        Binding(name="min_p", dtype=Dtype.FLOAT, shape=(B,), meaning="least probability, over the largest one"),
    )
    filters = (
        Binding(name="top_k", dtype=Dtype.INT64, shape=(B,), meaning="tokens kept, ties included; 0 keeps all"),
        Binding(name="top_p", dtype=Dtype.FLOAT, shape=(B,), meaning="probability kept, ties included; 1 keeps all"),
    )
    bias = (
        Binding(name="min_end", dtype=Dtype.INT64, shape=(B,), meaning="where the second bias begins"),
        Binding(name="bias", dtype=Dtype.FLOAT, shape=(B, 2, geometry.vocab_size),
                meaning="added to the logits of tokens before min_end, and from there on"),
    )  # fmt: skip
    mask = Binding(name="grammar_mask", dtype=Dtype.INT32, shape=(B, R, geometry.mask_words),
                   meaning="one bit a token, least significant first; 0 forbids")  # fmt: skip
    penalties = (
        Binding(name="in_prompt", dtype=Dtype.BOOL, shape=(B, geometry.vocab_size), meaning="tokens of the prompt"),
        Binding(name="generated", dtype=Dtype.FLOAT, shape=(B, geometry.vocab_size),
                meaning="how often each token was generated, the anchor included"),
        Binding(name="repetition_penalty", dtype=Dtype.FLOAT, shape=(B,), meaning="1 for none"),
        Binding(name="frequency_penalty", dtype=Dtype.FLOAT, shape=(B,), meaning="0 for none"),
        Binding(name="presence_penalty", dtype=Dtype.FLOAT, shape=(B,), meaning="0 for none"),
    )  # fmt: skip
    drawn = Binding(name="draft_probabilities", dtype=Dtype.FLOAT, shape=(B, R, geometry.vocab_size),
                    meaning="with which the token after each row was drafted")  # fmt: skip
    return (
        *(sampling if variant.sampling else ()),
        *(filters if variant.filters else ()),
        *(bias if variant.bias else ()),
        *((mask,) if variant.grammar_mask else ()),
        *(penalties if variant.penalties else ()),
        *((drawn,) if variant.rejection else ()),
    )


def _logprob_outputs(variant: AcceptVariant) -> tuple[Binding, ...]:
    """Log-probabilities of the sampled token and of the most likely ones."""
    if not variant.logprobs:
        return ()
    top: Shape = (B, R, variant.logprobs)
    return (
        Binding(
            name="logprob",
            dtype=Dtype.FLOAT,
            shape=(B, R),
            meaning="log-probability of the sampled token, before any rule",
        ),
        Binding(name="top_tokens", dtype=Dtype.INT64, shape=top, meaning="most likely tokens, best first"),
        Binding(name="top_logprobs", dtype=Dtype.FLOAT, shape=top, meaning="their log-probabilities"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A binding as a program file or an engine declares it; named dimensions are strings."""

    dtype: str
    shape: tuple[str | int, ...]


def check(program: Program, inputs: Mapping[str, Found], outputs: Mapping[str, Found]) -> None:
    """Refuse a program whose bindings are not the declared ones. Raises ContractError naming the first fault."""
    for side, declared, found in (("input", program.inputs, inputs), ("output", program.outputs, outputs)):
        for binding in declared:
            _check_binding(f"{program.name}: {side} {binding.name!r}", binding, found.get(binding.name))
        if extra := sorted(set(found) - {b.name for b in declared}):
            raise ContractError(f"{program.name}: {side} {extra[0]!r} is not in the contract; export the pair again")


def _check_binding(where: str, binding: Binding, found: Found | None) -> None:
    if found is None:
        raise ContractError(f"{where} is missing; export the pair again")
    if found.dtype != binding.dtype:
        raise ContractError(f"{where} is {found.dtype}, the contract says {binding.dtype}; export the pair again")
    sizes_agree = len(found.shape) == len(binding.shape) and all(
        isinstance(want, Dim) or got == want for want, got in zip(binding.shape, found.shape, strict=True)
    )
    if not sizes_agree:
        shape = ", ".join(map(str, binding.shape))
        raise ContractError(
            f"{where} has shape {list(found.shape)}, the contract says [{shape}]; export the pair again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Smallest, usual and largest size of a dimension in one optimisation profile."""

    low: int
    usual: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Sizes that one kind of call uses."""

    name: str
    ranges: Mapping[Dim, Range] = field(default_factory=dict)


def profiles(program: Program, limits: Limits) -> tuple[Profile, ...]:
    """One profile per block size (fixed sizes, for graph capture), and for `target` and `accept` one for prefill."""
    batch, rows = (
        Range(low=limits.max_batch, usual=limits.max_batch, high=limits.max_batch),
        limits.cache_rows,
    )
    fixed = {Dim.SLOTS: batch, Dim.CACHE_ROWS: Range(low=rows, usual=rows, high=rows)}
    decode = tuple(
        Profile(
            name=f"block_{size}",
            ranges=fixed | dict.fromkeys((S, R, K), Range(low=size, usual=size, high=size)),
        )
        for size in limits.block_sizes
    )
    if program.name.startswith("draft"):
        return decode
    chunk, one = limits.prefill_chunk, Range(low=1, usual=1, high=1)
    prefill = Profile(name="prefill", ranges=fixed | {B: one, S: Range(low=2, usual=chunk, high=chunk), R: one})
    return (*decode, prefill)
