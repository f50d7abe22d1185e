"""The tiny pair's programs, traced once, in every number format that TensorRT is given: bundles without the rest."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dflash_engines import contract
from dflash_engines.bundle import MANIFEST_FILE, Bundle
from dflash_engines.contract import ACCEPT_VARIANTS, Dtype, Geometry, Limits
from dflash_engines.manifest import SCHEMA_VERSION, FileRecord, Manifest, ModelSource, Precision
from dflash_export.checkpoint import locate
from dflash_export.precision.formats import CACHE_DTYPES, Formats, lower
from dflash_export.precision.prepare import prepare
from dflash_export.program_files import canonical
from dflash_export.programs import accept
from dflash_export.programs.build import Modules, assemble, load_pair
from dflash_export.weights import WeightFile
from tests.conftest import BUILD, ROOT
from tests.models.tiny_pair import DRAFTER, TARGET

MASK, BLOCK_SIZE = 3, 8
LIMITS = Limits(max_len=112, prefill_chunk=16, block_sizes=(4, 8))
LAYERS, DRAFT_LAYERS = 6, 2
MakeBundle = Callable[[Precision], Bundle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Target and draft as they were traced, in fp32, and the accept variants as files."""

    models: Mapping[str, ir.Model]
    accepts: Mapping[str, bytes]
    geometry: Geometry


# What traced programs depend on; tracing takes most of a minute, so they are kept between runs.
SOURCES = (
    *sorted((ROOT / "export" / "dflash_export" / "programs").glob("*.py")),
    *(ROOT / "export" / "dflash_export" / f"{n}.py" for n in ("ops", "seams", "trace", "rewrite", "drafter", "pair")),
    *(ROOT / "engines" / "dflash_engines" / f"{name}.py" for name in ("contract", "accept_variant")),
)


@pytest.fixture(scope="session")
def traced() -> Traced:
    modules = assemble(load_pair(locate(str(TARGET)), locate(str(DRAFTER))), draft_vocab=None, hidden_output=False)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:12]
    folder = BUILD / "test" / f"traced-{digest}"
    if not folder.is_dir():
        unfinished = Path(tempfile.mkdtemp(dir=mkdir(folder.parent)))
        trace_into(unfinished, modules)
        with contextlib.suppress(OSError):  # another worker was first
            unfinished.rename(folder)
    return Traced(
        models={name: ir.load(folder / f"{name}.onnx") for name in ("target", "draft")},
        accepts={path.stem: path.read_bytes() for path in sorted(folder.glob("accept*.onnx"))},
        geometry=modules.geometry,
    )


def mkdir(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def trace_into(folder: Path, modules: Modules) -> None:
    """Write the programs as they are traced."""
    vocabulary = contract.weightless(modules.geometry.vocab_size)
    programs = [(modules.target, contract.target(modules.geometry)), (modules.draft, contract.draft(modules.geometry))]
    accepts = [(accept.variants(MASK)[v], contract.accept(vocabulary, v)) for v in ACCEPT_VARIANTS]
    for module, program in (*programs, *accepts):
        ir.save(canonical(module, program), folder / f"{program.name}.onnx")


@pytest.fixture(scope="session")
def tiny_bundle(traced: Traced, tmp_path_factory: pytest.TempPathFactory) -> MakeBundle:
    """The bundle of a precision; made once, and never changed by a test."""
    made: dict[Precision, Bundle] = {}

    def get(precision: Precision) -> Bundle:
        if precision not in made:
            made[precision] = write_bundle(traced, precision, tmp_path_factory.mktemp(precision))
        return made[precision]

    return get


def write_bundle(traced: Traced, precision: Precision, folder: Path) -> Bundle:
    """Programs, weights and a manifest."""
    formats = Formats(backend="tensorrt-rtx", target=precision, draft=precision)
    prompts = [[(7 * i + j) % 1000 + 20 for i in range(24)] for j in range(5)]
    found = prepare(traced.models, formats, prompts, BLOCK_SIZE, MASK)
    with WeightFile(folder / "weights.bin") as weights:
        for name, model in traced.models.items():
            lowered = lower(model.clone(), name, found.formats, found.of(name))
            weights.take(lowered)
            ir.save(lowered, folder / f"{name}.onnx")
    for name, content in traced.accepts.items():
        (folder / f"{name}.onnx").write_bytes(content)
    cache_dtype = CACHE_DTYPES[found.formats.float_type]
    return write_manifest(folder, manifest(traced, precision, cache_dtype))


def manifest(traced: Traced, precision: Precision, cache_dtype: Dtype) -> Manifest:
    """All but the files."""
    source = ModelSource(id="tiny", revision="local", sha256="0" * 64)
    geometry: dict[str, Any] = {name: getattr(traced.geometry, name) for name in Geometry.__slots__}
    return Manifest(
        schema_version=SCHEMA_VERSION, target=source, drafter=source, architecture="llama",
        geometry=Geometry(**geometry | {"cache_dtype": cache_dtype}), limits=LIMITS, target_layer_ids=(1, 3, 4),
        block_size=BLOCK_SIZE, mask_token_id=MASK, stop_token_ids=(0,), draft_vocab_size=1024, backend="tensorrt-rtx",
        precision=precision, draft_precision=precision, hidden_output=False, parity={}, exporter={}, files={},
        programs={name: f"{name}.onnx" for name in (*traced.models, *traced.accepts)},
    )  # fmt: skip


def write_manifest(folder: Path, fields: Manifest) -> Bundle:
    """bundle.json over the files that lie there."""
    files = {
        path.name: FileRecord(sha256=hashlib.sha256(path.read_bytes()).hexdigest(), bytes=path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_FILE
    }
    (folder / MANIFEST_FILE).write_text(fields.model_copy(update={"files": files}).model_dump_json(), "utf-8")
    return Bundle.open(folder)
