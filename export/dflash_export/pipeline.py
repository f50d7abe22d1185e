"""The whole export: two checkpoints in, a bundle out, or one error and nothing written.

A bundle grows in a hidden folder beside its place and is moved there when it is whole and has passed parity.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from dflash_engines import contract, golden
from dflash_engines.backend import Programs
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Geometry, Limits, Program
from dflash_engines.errors import CheckpointError
from dflash_engines.host_engine import declared_programs
from dflash_engines.manifest import SCHEMA_VERSION, Backend, Manifest, Precision
from dflash_export import draft_vocabulary, golden_cases, parity
from dflash_export.block_sizes import offered
from dflash_export.checkpoint import Checkpoint, load_tokenizer, locate
from dflash_export.precision import calibration, chat
from dflash_export.precision import report as precision_report
from dflash_export.precision.formats import CACHE_DTYPES, Formats
from dflash_export.precision.graph_in_torch import runnable
from dflash_export.program_files import Written, write_programs
from dflash_export.programs.build import Modules, Pair, assemble, load_pair
from dflash_export.prompts import PROMPTS
from dflash_export.pytorch_backend import PytorchPrograms
from dflash_export.seal import seal

Report = Callable[[str], object]  # told what begins now
Tokens = Sequence[int]
MIN_MAX_LEN = 32  # tokens; parity prompts and golden cases need some room
STEPS = 9  # how often `export` reports
_VERSIONS = ("dflash-trt", "torch", "transformers", "onnx", "onnxruntime", "onnxscript")
GOLDEN_TOLERANCE: dict[Precision, float] = {"fp32": 5e-3, "fp16": 0.1, "bf16": 0.5, "int8": 1.0, "int4": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export, and for which limits."""

    target: str  # folder or Hugging Face id
    drafter: str
    out: Path
    precision: Precision = "fp32"
    draft_precision: Precision | None = None  # the target's when None; free to be lower, since drafts are checked
    backend: Backend = "onnxruntime"
    weight_only: bool = False  # int8 of weights alone
    quantize_head: bool = False  # the target's too
    calibration: Path | None = None  # a prompts file; the one that comes with the package when None
    report_prompts: int = 4  # that a bundle other than fp32 is measured on; 0 leaves the report out
    max_len: int = 2048
    max_batch: int = 1
    prefill_chunk: int = 128
    block_sizes: tuple[int, ...] | None = None  # those of block_sizes.offered when None
    hidden_output: bool = False
    draft_noise: bool = False  # also the drafter that draws with accept's noise
    draft_vocab: int = 0  # tokens the drafter may propose, the most used ones; 0 is all
    draft_vocab_counts: Path | None = None  # the drafter's own token_counts.json when None

    @property
    def formats(self) -> Formats:
        """The number formats asked for. Raises CheckpointError for those that can't be together."""
        return Formats(
            backend=self.backend,
            target=self.precision,
            draft=self.draft_precision or self.precision,
            weight_only=self.weight_only,
            quantize_head=self.quantize_head,
        )


def export(request: ExportRequest, report: Report = lambda _: None) -> Bundle:
    """Write the bundle and open it. Raises DflashError; then nothing is left behind."""
    if request.out.exists():
        raise CheckpointError(f"{request.out} exists already; choose another folder, or remove it first")
    report("loading checkpoints")
    formats, texts = request.formats, calibration.read_prompts(request.calibration or calibration.DEFAULT)
    precision_report.check_apart(texts, precision_report.read(request.report_prompts))
    target, drafter = locate(request.target), locate(request.drafter)
    models = load_pair(target, drafter)
    tokenizer = load_tokenizer(target.folder)
    limits = _limits(request, models)
    report("running transformers on the parity prompts")
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"][: limits.max_len // 2] for text in PROMPTS]
    reference = parity.record_reference(models.target, prompts)
    modules = assemble(models, draft_vocab=_vocabulary(request, drafter, models), hidden_output=request.hidden_output)
    with _hidden_folder(request.out) as folder:
        programs = _programs(request, modules.geometry)
        chats = [chat.encode(tokenizer, text) for text in texts]
        written = write_programs(folder, modules, programs, formats, chats, report)
        tokenizer.save_pretrained(folder)
        manifest = _manifest(request, target, drafter, models, modules, limits, written.prepared.formats)
        report("checking parity with PyTorch")
        compiled = runnable(seal(folder, manifest), modules)
        found = parity.check_parity(reference, compiled, modules, manifest)
        report("recording golden cases")
        _save_golden(folder, manifest, PytorchPrograms(modules), compiled, prompts)
        manifest = manifest.model_copy(update={"parity": found})
        bundle = seal(folder, manifest)
        if request.report_prompts and not _exact(manifest):
            report("measuring what the number formats cost")
            _save_report(request, bundle, written, compiled, modules, tokenizer)
            bundle = seal(folder, manifest)
        folder.rename(request.out)
    return replace(bundle, path=request.out.resolve())


def _limits(request: ExportRequest, models: Pair) -> Limits:
    trained = models.drafter.config.block_size
    sizes = request.block_sizes or offered(trained)
    if max(sizes) > trained or min(sizes) < 2:
        raise CheckpointError(
            f"block sizes {list(sizes)}: this drafter was trained for blocks of up to {trained}, from 2"
        )
    if request.max_len < MIN_MAX_LEN:
        raise CheckpointError(f"max_len {request.max_len} is too short to be useful; it starts at {MIN_MAX_LEN}")
    ceiling = models.target.model.config.get_text_config().max_position_embeddings
    if request.max_len > ceiling:
        raise CheckpointError(f"max_len {request.max_len} is more than the target's {ceiling} positions")
    return Limits(
        max_len=request.max_len,
        max_batch=request.max_batch,
        prefill_chunk=request.prefill_chunk,
        block_sizes=sizes,
    )


def _vocabulary(request: ExportRequest, drafter: Checkpoint, models: Pair) -> torch.Tensor | None:
    """The ids that the drafter may propose, ascending; None for all."""
    if request.draft_vocab == 0:
        return None
    counts = request.draft_vocab_counts or drafter.folder / draft_vocabulary.FILE
    ids = draft_vocabulary.most_used(counts, request.draft_vocab)
    size = models.target.head.shape[0]
    if strange := [i for i in ids if not 0 <= i < size]:
        raise CheckpointError(f"{counts}: token {strange[0]} is not one of the target's {size}")
    return torch.tensor(sorted(set(ids)))


@contextmanager
def _hidden_folder(out: Path) -> Iterator[Path]:
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs(request: ExportRequest, geometry: Geometry) -> tuple[Program, ...]:
    """Those that are traced for the pair; accept is the same for all pairs of a vocabulary."""
    target = contract.target(geometry, hidden_output=request.hidden_output)
    drafts = (contract.draft(geometry, noise=noise) for noise in (False, *((True,) if request.draft_noise else ())))
    return (target, *drafts)


def _manifest(
    request: ExportRequest,
    target: Checkpoint,
    drafter: Checkpoint,
    models: Pair,
    modules: Modules,
    limits: Limits,
    formats: Formats,
) -> Manifest:
    config = models.drafter.config
    return Manifest(
        schema_version=SCHEMA_VERSION,
        target=target.source,
        drafter=drafter.source,
        architecture=models.target.model.config.model_type,
        geometry=replace(modules.geometry, cache_dtype=CACHE_DTYPES[formats.float_type]),
        limits=limits,
        target_layer_ids=config.target_layer_ids,
        block_size=config.block_size,
        mask_token_id=config.mask_token_id,
        stop_token_ids=models.target.stop_token_ids,
        draft_vocab_size=modules.draft.head.shape[0],
        backend=formats.backend,
        precision=formats.target,
        draft_precision=formats.draft,
        hidden_output=request.hidden_output,
        programs={name: f"{name}.onnx" for name in _program_names(request, modules)},
        parity={},
        exporter={package: version(package) for package in _VERSIONS},
        files={},
    )


def _program_names(request: ExportRequest, modules: Modules) -> tuple[str, ...]:
    drafts = ("draft", "draft_noise") if request.draft_noise else ("draft",)
    return ("target", *drafts, *(variant.name for variant in modules.accepts))


def _save_golden(
    folder: Path, manifest: Manifest, oracle: Programs, compiled: Programs, prompts: Sequence[Sequence[int]]
) -> None:
    """Record golden cases, and hold the compiled programs to them.

    The oracle's results, where it computes the same weights; else those of the programs that passed parity.
    """
    declared = declared_programs(manifest)
    runner = golden.Runner(oracle if _exact(manifest) else compiled, declared, manifest.limits)
    block = max(manifest.limits.block_sizes)
    cases = golden_cases.record(runner, prompts, block, manifest.mask_token_id, GOLDEN_TOLERANCE[manifest.precision])
    cases.save(folder / golden.FILE)
    golden.check(golden.Golden.load(folder / golden.FILE), golden.Runner(compiled, declared, manifest.limits))


def _exact(manifest: Manifest) -> bool:
    """Whether the programs compute with the checkpoints' own weights, in fp32."""
    return {manifest.precision, manifest.draft_precision} == {"fp32"}


def _save_report(
    request: ExportRequest, bundle: Bundle, written: Written, compiled: Programs, modules: Modules,
    tokenizer: PreTrainedTokenizerBase,
) -> None:  # fmt: skip
    """Measure the compiled pair against the torch modules, and write both pages of the report."""
    prompts = [chat.encode(tokenizer, text) for text in precision_report.read(request.report_prompts)]
    comparison = precision_report.Comparison(bundle, compiled, PytorchPrograms(modules), prompts)
    found = precision_report.measure(
        comparison,
        lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True)),
        bundle,
        bytes_fp32=written.bytes_fp32,
        overflows=written.prepared.overflows,
    )
    precision_report.write(found, bundle.path)
