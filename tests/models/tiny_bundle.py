"""The tiny pair's bundles, each made once for all workers, for as long as its sources stay the same."""

import fcntl
import shutil
from pathlib import Path

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_export.pipeline import ExportRequest, export
from dflash_export.precision.convert import convert
from dflash_export.precision.formats import Formats
from tests.conftest import BUILD, fingerprint
from tests.models.tiny_pair import DRAFTER, TARGET, held_back_questions, load_tiny_pair

CHUNK = 7  # tokens; every prompt crosses several borders


def tiny_bundle(precision: Precision) -> Bundle:
    """Its drafter can draw."""
    out = BUILD / "test" / f"tiny-{precision}-{fingerprint()}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with (out.parent / f"tiny-{precision}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            for stale in out.parent.glob(f"tiny-{precision}-*"):
                shutil.rmtree(stale)
            _make(precision, out)
    return Bundle.open(out)


def _make(precision: Precision, out: Path) -> None:
    """Tracing takes a minute: formats other than fp32 do without."""
    if precision == "fp32":
        export(ExportRequest(target=str(TARGET), drafter=str(DRAFTER), out=out, max_len=512, prefill_chunk=CHUNK,
                             draft_noise=True))  # fmt: skip
        return
    prompts = [load_tiny_pair().encode(question) for question in held_back_questions()[:5]]
    unfinished = out.with_name(f"tiny-{precision}-unfinished")
    convert(tiny_bundle("fp32"), Formats(target=precision, draft=precision), prompts, unfinished)
    unfinished.rename(out)
