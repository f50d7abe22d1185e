"""The contract: what is derived from it, and that what doesn't match it is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from dflash_engines import contract
from dflash_engines.contract import AcceptVariant, CacheShape, Dim, Dtype, Found, Geometry, Limits, Program, Range
from dflash_engines.contract_table import markdown
from dflash_engines.errors import ContractError

GEOMETRY = Geometry(vocab_size=50, hidden_size=8, taps=2, target_caches=(CacheShape(kv_heads=2, head_dim=4),) * 3,
                    draft_caches=(CacheShape(kv_heads=1, head_dim=8),) * 2)  # fmt: skip
LIMITS = Limits(max_len=100, max_batch=3, prefill_chunk=32, block_sizes=(4, 8))


def found(program: Program) -> tuple[dict[str, Found], dict[str, Found]]:
    inputs, outputs = (
        {b.name: Found(dtype=b.dtype, shape=tuple(str(d) if isinstance(d, Dim) else d for d in b.shape)) for b in side}
        for side in (program.inputs, program.outputs)
    )
    return inputs, outputs


PROGRAMS = (
    contract.target(GEOMETRY),
    contract.target(GEOMETRY, hidden_output=True),
    contract.draft(GEOMETRY),
    contract.draft(GEOMETRY, noise=True),
    contract.accept(GEOMETRY),
    contract.accept(GEOMETRY, AcceptVariant(sampling=True, logprobs=4, bias=True, grammar_mask=True, penalties=True)),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.name}-{len(program.inputs)}")
def test_a_program_as_declared_passes_and_each_fault_is_named(program: Program) -> None:
    inputs, outputs = found(program)
    contract.check(program, inputs, outputs)
    for side, bindings in (("input", inputs), ("output", outputs)):
        for name, binding in bindings.items():
            for fault in (
                {},
                {name: Found(dtype="float64", shape=binding.shape)},
                {name: Found(dtype=binding.dtype, shape=(*binding.shape, 1))},
            ):
                broken = {n: b for n, b in bindings.items() if n != name} | fault
                with pytest.raises(ContractError, match=f"{side} '{name}'"):
                    contract.check(program, *((broken, outputs) if side == "input" else (inputs, broken)))


def test_a_binding_that_is_not_declared_is_named() -> None:
    inputs, outputs = found(contract.draft(GEOMETRY))
    with pytest.raises(ContractError, match="'position_ids' is not in the contract"):
        contract.check(contract.draft(GEOMETRY), inputs | {"position_ids": inputs["start"]}, outputs)


def test_every_cache_is_updated_in_place() -> None:
    program = contract.target(GEOMETRY)
    caches = {b.name for b in program.inputs if Dim.CACHE_ROWS in b.shape}
    assert set(program.updated.values()) == caches
    assert len(caches) == 2 * 3 + 2 * 2


def test_profiles_hold_each_block_size_fixed_and_prefill_apart() -> None:
    profiles = {p.name: p.ranges for p in contract.profiles(contract.target(GEOMETRY), LIMITS)}
    assert list(profiles) == ["block_4", "block_8", "prefill"]
    assert profiles["block_8"][Dim.ROWS_IN] == Range(low=8, usual=8, high=8)
    assert profiles["prefill"][Dim.ROWS_IN] == Range(low=2, usual=32, high=32)
    assert profiles["prefill"][Dim.SLOTS] == Range(low=1, usual=1, high=1)
    assert all(r.low <= r.usual <= r.high for ranges in profiles.values() for r in ranges.values())
    assert len(contract.profiles(contract.draft(GEOMETRY), LIMITS)) == 2


def test_guard_rows_hold_two_blocks_behind_the_last_token() -> None:
    assert LIMITS.cache_rows == 100 + 16


@pytest.mark.parametrize(
    "fields",
    [
        {"max_len": 0},
        {"max_len": 9, "block_sizes": ()},
        {"max_len": 9, "prefill_chunk": 1},
        {"max_len": 9, "max_batch": 0},
    ],
)
def test_limits_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        Limits(**fields)


def test_variants_have_names_of_their_own() -> None:
    assert AcceptVariant().name == "accept"
    assert AcceptVariant(sampling=True, logprobs=3).name == "accept_sampling_logprobs3"


def test_element_sizes() -> None:
    assert {d: d.size for d in Dtype}[Dtype.BFLOAT16] == 2


def test_the_documents_table_is_the_contracts() -> None:
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    assert page.read_text(encoding="utf-8") == markdown(), (
        "run: python -m dflash_engines.contract_table > docs/contract.md"
    )
