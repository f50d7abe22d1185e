from collections.abc import Iterator

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.device.engine import DeviceEngine
from tests.engines.device.on_host import device_engine


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[DeviceEngine]:
    engine = device_engine(bundle)
    yield engine
    engine.close()
