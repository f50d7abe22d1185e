"""What a build refuses before it begins, and the memory it counts: of the scripted pair, whose sizes are known."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits, profiles, target
from dflash_engines.errors import EngineError
from dflash_engines.tensorrt.build import BuildRequest, engine_limits, plan
from dflash_engines.tensorrt.library import Library
from dflash_engines.tensorrt.memory import MemoryTable, Row
from tests.engines.scripted_bundle import write_bundle


@pytest.fixture
def library() -> Library:
    """Planning asks it for nothing but its name."""
    module: Any = ModuleType("tensorrt_rtx")
    return Library(backend="tensorrt-rtx", trt=module)


def test_caches_and_weights_are_counted_exactly(tmp_path: Path, library: Library) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "bundle", max_len=1000, max_batch=3))
    planned = plan(bundle, library, BuildRequest())
    found = {row.what: row.nbytes for row in planned.memory.rows}
    rows = 1000 + 2 * 6  # and twice the largest block
    four_caches = 4 * -(-3 * rows * 4 // 256) * 256  # key and value of one layer of each, aligned
    assert found["caches"] == four_caches
    assert planned.memory.total == sum(n for what, n in found.items() if "twice" not in what)


def test_what_does_not_fit_is_refused_with_the_numbers(tmp_path: Path, library: Library) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "bundle", max_len=1_000_000, max_batch=100))
    with pytest.raises(EngineError, match=r"needs 4\.00 GB .*caches 1\.60.*the device has 1\.00.*max_len"):
        plan(bundle, library, BuildRequest(device_memory=10**9))
    plan(bundle, library, BuildRequest(device_memory=5 * 10**9))


def test_rows_within_others_are_not_added_twice() -> None:
    table = MemoryTable(rows=(Row(what="weights of a", nbytes=5), Row(what="twice", nbytes=3, within=True)))
    assert (table.total, table.weights) == (5, 5)


LIMITS = Limits(max_len=512, max_batch=2, prefill_chunk=64, block_sizes=tuple(range(2, 17)))


@pytest.mark.parametrize(
    ("asked", "sizes"), [(None, (4, 8, 16)), ((8, 16), (8, 16)), ((16,), (16,)), ((16, 2), (2, 16))]
)
def test_block_sizes(asked: tuple[int, ...] | None, sizes: tuple[int, ...]) -> None:
    assert engine_limits(LIMITS, asked, None).block_sizes == sizes


def test_few_block_sizes_are_all_built() -> None:
    assert engine_limits(replace(LIMITS, block_sizes=(3, 5, 8)), None, None).block_sizes == (3, 5, 8)


@pytest.mark.parametrize(
    ("sizes", "slots", "message"),
    [((17,), None, "17 is not one of"), ((4, 8), None, "leave out 16"), (None, 0, "at least 1, not 0")],
)
def test_limits_that_can_t_be(sizes: tuple[int, ...] | None, slots: int | None, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        engine_limits(LIMITS, sizes, slots)


def test_operators_of_onnx_runtime_are_refused(tmp_path: Path, library: Library) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "bundle"))
    quantised = bundle.manifest.model_copy(update={"precision": "int8", "backend": "onnxruntime"})
    with pytest.raises(EngineError, match="int8 in operators of ONNX Runtime's own; export it again with --backend"):
        plan(replace(bundle, manifest=quantised), library, BuildRequest())


SMALL = Limits(max_len=40, max_batch=1, prefill_chunk=2, block_sizes=(2,))
WIDE = Limits(max_len=16, max_batch=64, prefill_chunk=4096, block_sizes=(2, 16))


@pytest.mark.parametrize("limits", [LIMITS, SMALL, WIDE])
def test_profiles_are_in_order_and_decode_is_fixed(limits: Limits, bundle: Bundle) -> None:
    for profile in profiles(target(bundle.manifest.geometry), limits):
        for found in profile.ranges.values():
            assert 1 <= found.low <= found.usual <= found.high
            if profile.name != "prefill":
                assert found.low == found.high
