from importlib.metadata import EntryPoint

import pytest

from dflash_engines import backend
from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import HostEngine

ONNXRUNTIME = EntryPoint(
    name="onnxruntime", value="dflash_engines.onnxruntime_cpu:load", group=backend.ENTRY_POINT_GROUP
)
ABSENT = EntryPoint(name="absent", value="surely_not_installed:load", group=backend.ENTRY_POINT_GROUP)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "entry_points", lambda group: [ONNXRUNTIME, ABSENT])


def test_a_backend_is_found_by_its_entry_point(bundle: Bundle) -> None:
    assert isinstance(load_engine(bundle, "onnxruntime", Options()), HostEngine)


def test_an_unknown_backend_names_those_there_are(bundle: Bundle) -> None:
    with pytest.raises(EngineError, match=r"'tensorflow'.*'absent', 'onnxruntime'"):
        load_engine(bundle, "tensorflow", Options())


def test_a_backend_whose_package_is_missing_names_the_package(bundle: Bundle) -> None:
    with pytest.raises(EngineError, match="'absent' needs the package 'surely_not_installed'"):
        load_engine(bundle, "absent", Options())
