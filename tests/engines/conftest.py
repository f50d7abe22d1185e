from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from tests.engines.scripted_bundle import write_bundle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fresh bundle's folder, to be spoilt."""
    return write_bundle(tmp_path / "bundle")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(write_bundle(tmp_path_factory.mktemp("scripted"), max_batch=3))
