"""Acceptance, in PyTorch and compiled, against a plain loop over rows."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dflash_engines import contract
from dflash_engines.contract import GREEDY, CacheShape, Geometry
from dflash_export.programs.accept import Accept
from dflash_export.trace import trace

MASK, VOCAB = 3, 11
GEOMETRY = Geometry(vocab_size=VOCAB, hidden_size=4, taps=1, target_caches=(CacheShape(kv_heads=1, head_dim=4),),
                    draft_caches=(CacheShape(kv_heads=1, head_dim=4),))  # fmt: skip


def one_slot(best: list[int], block: list[int], start: int, forced: int, count: int, limit: int) -> tuple[object, ...]:
    """accepted, next_tokens, next_start, next_length as the design words them."""
    kept = 0
    while kept < count and (kept < forced or block[kept] == best[kept - 1]):
        kept += 1
    first = best[kept - 1] if count else block[0]
    next_start = min(start + kept, limit)
    next_length = next_start + len(block) if count else 1
    return max(kept - forced, 0), [first] + [MASK] * (len(block) - 1), next_start, next_length


@st.composite
def slots(draw: st.DrawFn) -> list[tuple[list[int], list[int], int, int, int, int]]:
    rows, count = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    token = st.integers(0, 3)  # few tokens, so that drafts are often right
    row = st.lists(token, min_size=rows, max_size=rows)
    return [
        (draw(row), draw(row), draw(st.integers(0, 30)), draw(st.integers(1, rows)), draw(st.integers(0, rows)), 25)
        for _ in range(count)
    ]


def inputs(cases: list[tuple[list[int], list[int], int, int, int, int]]) -> dict[str, NDArray[np.generic]]:
    best, block, start, forced, count, limit = (np.array(column) for column in zip(*cases, strict=True))
    forced = np.minimum(forced, np.maximum(count, 1))
    logits = np.zeros((*best.shape, VOCAB), np.float32)
    np.put_along_axis(logits, best[..., None], 1.0, -1)
    return {"logits": logits, "block": block, "start": start, "forced": forced, "count": count, "limit": limit}


@given(slots())
def test_accept_is_the_plain_loop(cases: list[tuple[list[int], list[int], int, int, int, int]]) -> None:
    given_ = inputs(cases)
    out = Accept(GREEDY, MASK)(*(torch.from_numpy(value) for value in given_.values()))
    for slot, (best, block, start, _, count, limit) in enumerate(cases):
        wanted = one_slot(best, block, start, int(given_["forced"][slot]), count, limit)
        assert tuple(value[slot].tolist() for value in out[1:5]) == wanted
        assert out[0][slot].tolist() == best


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ort.InferenceSession:
    path: Path = tmp_path_factory.mktemp("accept") / "accept.onnx"
    ir.save(trace(Accept(GREEDY, MASK), contract.accept(GEOMETRY)), path)
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
def test_compiled_accept_equals_pytorch_and_sees_every_bad_number(
    compiled: ort.InferenceSession, rows: int, bad: float | None
) -> None:
    generator = np.random.default_rng(rows)
    given_: dict[str, NDArray[Any]] = {
        "logits": generator.normal(size=(3, rows, VOCAB)).astype(np.float32),
        "block": generator.integers(0, VOCAB, (3, rows)),
        "start": np.array([0, 5, 9]),
        "forced": np.array([1, 1, 1]),
        "count": np.array([rows, 0, rows]),
        "limit": np.array([100, 100, 9]),
    }
    if bad is not None:
        given_["logits"][:2, rows - 1, 4] = bad
    found = compiled.run(None, given_)
    wanted = Accept(GREEDY, MASK)(*(torch.from_numpy(value) for value in given_.values()))
    for name, a, b in zip([o.name for o in compiled.get_outputs()], found, wanted, strict=True):
        if bad is None or name == "finite":  # which token a NaN beats is nobody's promise
            np.testing.assert_array_equal(a, b.numpy(), err_msg=name)
    assert found[5].tolist() == [bad is None, True, True]  # an idle slot's rows don't count
