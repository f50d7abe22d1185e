"""The runtime side of TensorRT over fakes of the library and of the driver: contexts, bindings, checks, caches."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dtype
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import declared_programs, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from tests.engines.device.fake_driver import FakeDriver
from tests.engines.device.on_host import pair, settings
from tests.engines.scripted_bundle import BLOCK_SIZE
from tests.engines.scripted_pair import plain_tokens
from tests.engines.tensorrt.fake_tensorrt import FakeTensorRt

pytest.importorskip("cuda.bindings.driver", reason="needs the optional package cuda-bindings")
PROMPT = [5, 6, 7, 8, 9, 10, 11]  # two chunks
SLOTS = 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()
    monkeypatch.setattr("dflash_engines.device.cuda.driver", driver)
    return driver


@pytest.fixture
def library(bundle: Bundle, driver: FakeDriver) -> FakeTensorRt:
    limits = host_limits(bundle, Options(slots=SLOTS))
    programs = OnnxRuntimePrograms(bundle, Options(threads=1))
    return FakeTensorRt(driver, programs, declared_programs(bundle.manifest), limits)


def load(bundle: Bundle, library: FakeTensorRt, caches: Path | None = None, plan: str = "") -> DeviceEngine:
    from dflash_engines.device.cuda import CudaDevice
    from dflash_engines.tensorrt.runtime import TensorRtPrograms

    declared, limits = declared_programs(bundle.manifest), host_limits(bundle, Options(slots=SLOTS))
    device = CudaDevice(0)
    plans = {program.name: (plan or program.name).encode() for program in declared}
    programs = TensorRtPrograms(library, device, declared, plans, limits, caches)  # type: ignore[arg-type]
    rows = min(limits.block_sizes)
    return DeviceEngine(pair(bundle), device, programs, limits, settings(SLOTS, batches=(SLOTS,), plain_rows=rows))


@pytest.fixture
def engine(bundle: Bundle, library: FakeTensorRt) -> Iterator[DeviceEngine]:
    engine = load(bundle, library)
    yield engine
    engine.close()


def generated(engine: DeviceEngine, iterations: int, block_size: int = BLOCK_SIZE) -> list[int]:
    engine.prefill(0, PROMPT[:5], 0)
    tokens = [int(engine.finish_prefill(0, PROMPT[5:], 5).sampled[0, 0])]
    engine.place(0, tokens[0], len(PROMPT), engine.limits.max_len)
    for _ in range(iterations):
        while engine.can_launch:
            engine.launch(block_size)
        found = engine.collect()
        tokens += found.sampled[0, : found.accepted[0] + 1].tolist()
    return tokens


def test_engines_give_the_targets_tokens(engine: DeviceEngine) -> None:
    tokens = generated(engine, 4)
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert engine.counts.replays == 5


def test_plain_decoding_goes_through_the_drafted_shape(engine: DeviceEngine) -> None:
    """Its profile is the only one there is, and its numbers are the same as with the drafter."""
    tokens = generated(engine, 6, block_size=1)
    assert tokens == plain_tokens(PROMPT, 7)


def test_decode_contexts_are_bound_once_and_share_the_scratch(engine: DeviceEngine, library: FakeTensorRt) -> None:
    generated(engine, 2)
    contexts = [context for made in library.engines.values() for context in made.contexts]
    before = [context.sets for context in contexts]
    generated(engine, 3)
    after = [context.sets for context in contexts]
    changed = [context.engine.program.name for context, a, b in zip(contexts, before, after, strict=True) if a != b]
    assert sorted(changed) == ["accept", "target"]  # prefill's alone
    assert {context.scratch for context in contexts} == {(engine.programs.addresses()[0], 2000)}


def test_kernels_are_compiled_at_once_and_kept(bundle: Bundle, library: FakeTensorRt, tmp_path: Path) -> None:
    engine = load(bundle, library, tmp_path)
    generated(engine, 2)
    config = library.engines[b"target"].contexts[0].config
    assert (config.cuda_graph_strategy, config.dynamic_shapes_kernel_specialization_strategy) == ("disabled", "eager")
    engine.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["accept.kernels", "draft.kernels", "target.kernels"]
    again = load(bundle, library, tmp_path)
    generated(again, 1)
    assert library.engines[b"target"].contexts[-1].config.cache.content
    again.close()


def test_kernels_of_another_version_are_compiled_again(
    bundle: Bundle, library: FakeTensorRt, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "target.kernels").write_bytes(b"of version 0")
    engine = load(bundle, library, tmp_path)
    generated(engine, 1)
    assert "target.kernels is of another version" in caplog.text
    engine.close()
    assert (tmp_path / "target.kernels").read_bytes() != b"of version 0"


def test_a_run_that_is_refused_is_an_error_with_the_librarys_words(engine: DeviceEngine, library: FakeTensorRt) -> None:
    """Never tokens of zeros."""
    library.refuses = "target"
    with pytest.raises(EngineError, match=r"did not start 'target' \(prefill\): out of resources"):
        engine.prefill(0, [5, 6], 0)


def test_a_stream_that_cannot_be_recorded_runs_plainly_and_says_so(engine: DeviceEngine, library: FakeTensorRt) -> None:
    library.capturable = False
    tokens = generated(engine, 3)
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert engine.counts.replays == 0
    assert "can't be recorded" in engine.counts.reason


def test_an_engine_that_cannot_be_read_is_told_in_the_librarys_words(bundle: Bundle, library: FakeTensorRt) -> None:
    with pytest.raises(EngineError, match="tensorrt_rtx can't read the engine of 'target': magic tag does not match"):
        load(bundle, library, plan="of another library")


def missing(engine: Any) -> None:
    engine.tensors.pop(0)


def extra(engine: Any) -> None:
    engine.tensors.append(replace(engine.tensors[0], name="step"))


def narrow(engine: Any) -> None:
    engine.tensors[1] = replace(engine.tensors[1], dtype=Dtype.INT32)


def copied(engine: Any) -> None:
    engine.tensors[-1] = replace(engine.tensors[-1], updates="")


def swapped(engine: Any) -> None:
    engine.tensors[-1] = replace(engine.tensors[-1], updates=engine.tensors[-2].updates)


def fewer_profiles(engine: Any) -> None:
    engine.profiles = engine.profiles[:1]


def other_ranges(engine: Any) -> None:
    engine.profiles = tuple(reversed(engine.profiles))


FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "missing": (missing, "has no tensor 'tokens'"),
    "extra": (extra, "has a tensor 'step' that is not declared"),
    "narrow": (narrow, "has 'start' as INT32, not INT64"),
    "copied": (copied, "does not write 'new_draft_value_0' over 'draft_value_0'"),
    "swapped": (swapped, "does not write 'new_draft_value_0' over 'draft_value_0'"),
    "fewer profiles": (fewer_profiles, r"profile 'prefill' \(1\) is missing"),
    "other ranges": (other_ranges, r"profile 'block_6' \(0\) allows \[\d+, \d+, \d+\] .* not \[\d+, \d+, \d+\]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_that_is_not_as_declared_is_refused(bundle: Bundle, library: FakeTensorRt, fault: str) -> None:
    plant, message = FAULTS[fault]
    plant(library.engines[b"target"])
    with pytest.raises(EngineError, match=message) as caught:
        load(bundle, library)
    assert "build it again with dflash-export build" in str(caught.value)


def test_everything_is_given_back(bundle: Bundle, library: FakeTensorRt, driver: FakeDriver) -> None:
    engine = load(bundle, library)
    generated(engine, 1)
    engine.close()
    assert not (driver.allocated or driver.live or driver.pinned)


def test_the_real_library_has_all_that_is_asked_of_it() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="needs the optional package tensorrt_rtx")
    for fake, real in (
        ("FakeTensorRt", trt), ("FakeEngine", trt.ICudaEngine), ("FakeContext", trt.IExecutionContext),
        ("FakeConfig", trt.IRuntimeConfig), ("FakeCache", trt.IRuntimeCache),
    ):  # fmt: skip
        from tests.engines.tensorrt import fake_tensorrt

        own = {"engines", "world", "program", "profile", "shapes", "version", "content", "allocation", "cache"}
        asked = {name for name in vars(getattr(fake_tensorrt, fake)) if not name.startswith("_")} - own
        assert asked <= set(dir(real)), fake
    assert trt.TensorIOMode.INPUT and trt.ExecutionContextAllocationStrategy.USER_MANAGED
    assert trt.CudaGraphStrategy.DISABLED is not None
    assert trt.DynamicShapesKernelSpecializationStrategy.EAGER
