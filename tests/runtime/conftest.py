from pathlib import Path

import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.onnxruntime_cpu import load
from dflash_runtime import Decoder
from tests.engines.scripted_bundle import write_bundle


@pytest.fixture(scope="session")
def scripted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("scripted"), max_batch=4)


@pytest.fixture(scope="session")
def bundle(scripted_folder: Path) -> Bundle:
    return Bundle.open(scripted_folder)


@pytest.fixture
def decoder(bundle: Bundle) -> Decoder:
    return Decoder(load(bundle, Options(slots=1)))
