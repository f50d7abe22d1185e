"""What differs between the two libraries, with `tensorrt` played by a namespace that has its names."""

import importlib
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dflash_engines.errors import EngineError
from dflash_engines.tensorrt.library import Library, load_library


class Flag(IntEnum):
    STRONGLY_TYPED = 1


class Config:
    """Of TensorRT: a timing cache, no compute capabilities."""

    def __init__(self, refused: bytes) -> None:
        self.refused, self.used, self.flags = refused, b"nothing yet", list[Any]()

    def create_timing_cache(self, content: bytes) -> bytes:
        return content

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        self.used = cache
        return ignore_mismatch or cache != self.refused

    def set_flag(self, flag: Any) -> None:
        self.flags.append(flag)


def tensorrt(version: str, *, lengths: bool) -> Library:
    attention = type("IAttention", (), {"key_value_lengths": None} if lengths else {})
    flags = SimpleNamespace(NetworkDefinitionCreationFlag=Flag, BuilderFlag=SimpleNamespace(), IAttention=attention)
    module: Any = ModuleType("tensorrt")
    vars(module).update(vars(flags), __version__=version)
    return Library(backend="tensorrt", trt=module)


def test_tensorrt_builds_for_the_gpu_at_hand_alone() -> None:
    library = tensorrt("11.4.0.106", lengths=True)
    library.aim_at(Config(b""), ())
    with pytest.raises(EngineError, match="--backend tensorrt-rtx"):
        library.aim_at(Config(b""), ("8.9",))


def test_attention_knows_lengths_from_tensorrt_11() -> None:
    assert not tensorrt("10.15.1.29", lengths=False).attends_by_length
    assert tensorrt("11.0.0.114", lengths=True).attends_by_length


def test_a_timing_cache_of_another_gpu_is_left_aside() -> None:
    library, config = tensorrt("11.4.0.106", lengths=True), Config(refused=b"another GPU")
    assert library.use_timing_cache(config, b"this GPU") == b"this GPU" == config.used
    assert library.use_timing_cache(config, b"another GPU") == b"" == config.used


def test_tensorrt_has_no_flag_for_capture() -> None:
    config = Config(b"")
    tensorrt("11.4.0.106", lengths=True).for_capture(config)
    assert config.flags == []


@pytest.mark.parametrize("version", ["10.14.9", "9.3.0", "10.15.0.1"])
def test_older_releases_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt(version, lengths=False).trt)
    with pytest.raises(EngineError, match=rf"tensorrt {version} can't read.*10\.15\.1 or newer"):
        load_library("tensorrt")


def test_newer_releases_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt("11.0.0.114", lengths=True).trt)
    assert load_library("tensorrt").version == "11.0.0.114"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EngineError, match=r"needs tensorrt .*dflash-trt\[tensorrt\]"):
        load_library("tensorrt")


def test_a_library_that_can_t_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise ImportError(f"{name}: libnvinfer.so.11: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(EngineError, match=r"libnvinfer\.so\.11"):
        load_library("tensorrt-rtx")


def test_rtx_names_the_capabilities_that_it_can_build_for() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="needs the optional package tensorrt_rtx")
    library = load_library("tensorrt-rtx")
    assert {"8.0", "8.6", "8.9", "12.0"} <= set(library.known_capabilities())
    config = trt.Builder(trt.Logger(trt.Logger.ERROR)).create_builder_config()
    library.aim_at(config, ("8.9", "12.0"))
    assert config.num_compute_capabilities == 2
    with pytest.raises(EngineError, match=r"'9\.0', only for 7\.5, 8\.0"):
        library.aim_at(config, ("9.0",))


def test_rtx_has_no_timing_cache() -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the optional package tensorrt_rtx")
    assert load_library("tensorrt-rtx").use_timing_cache(None, b"") is None
