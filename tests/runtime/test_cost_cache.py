import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.cache_folder import FOLDER_VARIABLE, cache_folder
from dflash_engines.engine import Engine
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime import cost_cache
from dflash_runtime.cost_cache import cached_costs
from dflash_runtime.cost_table import CostTable, measure


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> HostEngine:
    return HostEngine(bundle, OnnxRuntimePrograms(bundle, Options()), host_limits(bundle, Options(slots=1)))


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CostTable]:
    """Those that were made, with an empty cache in tmp_path at first."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    made: list[CostTable] = []

    def counted(engine: Engine) -> CostTable:
        made.append(measure(engine, budget=0.2))
        return made[-1]

    monkeypatch.setattr(cost_cache, "measure", counted)
    return made


def costs(engine: Engine, backend: str = "onnxruntime", threads: int | None = 2) -> CostTable:
    return cached_costs(engine, backend=backend, threads=threads)()


def stored(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def test_an_engine_is_measured_once(engine: Engine, measurements: list[CostTable], tmp_path: Path) -> None:
    assert costs(engine) == costs(engine) == measurements[0]
    assert len(measurements) == len(stored(tmp_path)) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_another_way_of_running_it_is_measured_anew(engine: HostEngine, measurements: list[CostTable]) -> None:
    costs(engine)
    costs(engine, threads=1)
    costs(engine, backend="pytorch")
    shorter = HostEngine(engine.bundle, engine.programs, replace(engine.limits, max_len=30))
    costs(shorter)
    manifest = engine.bundle.manifest
    files = manifest.files | {"target.onnx": manifest.files["target.onnx"].model_copy(update={"sha256": "0" * 64})}
    changed = replace(engine.bundle, manifest=manifest.model_copy(update={"files": files}))
    costs(HostEngine(changed, engine.programs, engine.limits))
    assert len(measurements) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"slots": [1]}', b"[" * 100000])
def test_a_spoilt_file_is_measured_over(
    engine: Engine, measurements: list[CostTable], tmp_path: Path, content: bytes
) -> None:
    costs(engine)
    stored(tmp_path)[0].write_bytes(content)
    costs(engine)
    assert len(measurements) == 2
    assert costs(engine) == measurements[1]
    assert len(measurements) == 2


def test_an_old_table_is_measured_over(engine: Engine, measurements: list[CostTable], tmp_path: Path) -> None:
    costs(engine)
    os.utime(stored(tmp_path)[0], (0, 0))
    costs(engine)
    costs(engine)
    assert len(measurements) == 2


def test_a_table_of_other_block_sizes_is_not_used(
    engine: Engine, measurements: list[CostTable], tmp_path: Path
) -> None:
    table = costs(engine)
    stored(tmp_path)[0].write_text(json.dumps(replace(table, block_sizes=(1, 3)).as_json()))
    costs(engine)
    assert len(measurements) == 2


def test_a_folder_that_cannot_be_written_costs_a_measurement(
    engine: Engine, measurements: list[CostTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the folder's place stops everybody, root too."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file"))
    costs(engine)
    costs(engine)
    assert len(measurements) == 2


def test_without_a_choice_it_is_the_users_own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "dflash-trt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dflash-trt"
