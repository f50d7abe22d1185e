"""The tiny pair as bundles of several formats."""

from collections.abc import Callable

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from tests.models import tiny_bundle as bundles

TinyBundle = Callable[[Precision], Bundle]


@pytest.fixture(scope="session")
def tiny_bundle() -> TinyBundle:
    """Made once for all workers; their drafters can draw."""
    return bundles.tiny_bundle
