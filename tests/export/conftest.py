"""Exported tiny bundles, each made once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_export import program_files
from dflash_export.pipeline import ExportRequest, export
from tests.conftest import BUILD, fingerprint
from tests.export.pairs import PairCase, write_pair
from tests.export.traced_accepts import traced_once

ExportPair = Callable[[PairCase], tuple[Path, Path, Bundle]]


@pytest.fixture(scope="session", autouse=True)
def _accepts_are_traced_once() -> Iterator[None]:
    """For these tests alone: an export outside of them traces what it writes."""
    kept = traced_once(program_files._traced_accept, BUILD / "test" / f"accepts-{fingerprint()}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(program_files, "_traced_accept", kept)
        yield


@pytest.fixture(scope="session")
def export_pair(tmp_path_factory: pytest.TempPathFactory) -> ExportPair:
    """Folder of the target, folder of the drafter, and their fp32 bundle."""
    made: dict[str, tuple[Path, Path, Bundle]] = {}

    def get(case: PairCase) -> tuple[Path, Path, Bundle]:
        if case.name not in made:
            root = tmp_path_factory.mktemp(case.name)
            target, drafter = write_pair(case, root)
            request = ExportRequest(
                target=str(target),
                drafter=str(drafter),
                out=root / "bundle",
                max_len=192,
                max_batch=2,
                prefill_chunk=16,
            )
            made[case.name] = (target, drafter, export(request))
        return made[case.name]

    return get
