"""From a bundle's programs to engines, their sidecar, and a manifest that lists them.

Precision lies in the programs: the network is strongly typed. Each engine has a profile for each block size, whose
smallest, usual and largest sizes are the same, and one for prefill, so that weights exist once.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx
from onnx import ModelProto

from dflash_engines.bundle import MANIFEST_FILE, Bundle
from dflash_engines.contract import Dim, Dtype, Limits, Profile, Program, Range, profiles
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import declared_programs
from dflash_engines.lowerings.choices import choices_as_steps
from dflash_engines.lowerings.grouped_queries import grouped_queries
from dflash_engines.lowerings.shortcuts import without_shortcuts
from dflash_engines.lowerings.softcap import written_out_softcap
from dflash_engines.lowerings.static_cache import static_cache
from dflash_engines.manifest import FileRecord, Manifest
from dflash_engines.tensorrt import network as networks
from dflash_engines.tensorrt.engine_files import (
    ATTENTIONS,
    SCHEMA_VERSION,
    Attention,
    EngineRecord,
    Sidecar,
    engine_name,
    sidecar_name,
    weights_sha256,
)
from dflash_engines.tensorrt.host_memory import watched
from dflash_engines.tensorrt.library import Library
from dflash_engines.tensorrt.log import kept_log
from dflash_engines.tensorrt.machine import compute_capability
from dflash_engines.tensorrt.memory import MemoryTable, memory_table
from dflash_engines.tensorrt.network import Parsed
from dflash_engines.tensorrt.progress import monitor

Report = Callable[[str, float], object]  # told what is built, and which part of the current phase is done
DEFAULT_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0")
MOST_BLOCK_SIZES = 3  # by default: each adds a profile, which costs build time and some megabytes of kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. None leaves the choice to the bundle or to the library."""

    compute_capabilities: tuple[str, ...] = ()  # TensorRT-RTX alone; DEFAULT_CAPABILITIES when empty
    block_sizes: tuple[int, ...] | None = None
    max_batch: int | None = None
    attention: tuple[Attention, ...] = ATTENTIONS  # each is an engine of its own; the first load keeps the fastest
    workspace: int | None = None  # bytes of scratch memory, at most
    device_memory: int | None = None  # bytes; a build that would need more is refused
    timing_cache: Path | None = None  # TensorRT alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A build that is about to begin: all that can be refused has been."""

    bundle: Bundle
    library: Library
    request: BuildRequest
    limits: Limits
    programs: tuple[Program, ...]
    models: dict[str, ModelProto]  # without their weights
    memory: MemoryTable


def plan(bundle: Bundle, library: Library, request: BuildRequest) -> Plan:
    """Check what is asked for, and count the memory. Raises EngineError."""
    _check_operators(bundle.manifest, bundle.path)
    if library.backend == "tensorrt-rtx" and not request.compute_capabilities:
        request = replace(request, compute_capabilities=DEFAULT_CAPABILITIES)
    limits = engine_limits(bundle.manifest.limits, request.block_sizes, request.max_batch)
    programs = declared_programs(bundle.manifest)
    models = {program.name: onnx.load(bundle.program(program.name), load_external_data=False) for program in programs}
    table = memory_table(models, programs, limits)
    if request.device_memory is not None:
        table.check(request.device_memory, "the device")
    return Plan(
        bundle=bundle, library=library, request=request, limits=limits, programs=programs, models=models, memory=table
    )


def build(planned: Plan, report: Report) -> tuple[Bundle, Sidecar]:
    """Build every engine into the bundle, and open it again. Raises EngineError; then the bundle is as it was."""
    bundle = planned.bundle
    with tempfile.TemporaryDirectory(prefix=".engines.", dir=bundle.path) as unfinished:
        folder = Path(unfinished)
        engines = [
            record for program in planned.programs for record in _build_program(planned, program, folder, report)
        ]
        sidecar = _sidecar(planned, tuple(engines))
        name = sidecar_name(planned.library.backend)
        (folder / name).write_text(sidecar.model_dump_json(indent=1), encoding="utf-8")
        _list(bundle, folder, planned.library.backend)
    return Bundle.open(bundle.path), sidecar


def engine_limits(limits: Limits, block_sizes: tuple[int, ...] | None, max_batch: int | None) -> Limits:
    """The bundle's limits with some block sizes and a number of slots. Raises EngineError."""
    chosen = block_sizes or _usual_block_sizes(limits.block_sizes)
    if strange := sorted(set(chosen) - set(limits.block_sizes)):
        raise EngineError(f"block size {strange[0]} is not one of the bundle's, {list(limits.block_sizes)}")
    if max(chosen) != max(limits.block_sizes):
        raise EngineError(
            f"block sizes {list(chosen)} leave out {max(limits.block_sizes)}, which the bundle's golden cases have"
        )
    slots = limits.max_batch if max_batch is None else max_batch
    if slots < 1:
        raise EngineError(f"max_batch must be at least 1, not {slots}")
    return replace(limits, block_sizes=tuple(sorted(chosen)), max_batch=slots)


def _usual_block_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The largest, and those nearest to its half and its quarter, if there are many."""
    if len(sizes) <= MOST_BLOCK_SIZES:
        return sizes
    wanted = (max(sizes) / 2**n for n in range(MOST_BLOCK_SIZES))
    return tuple(sorted({min(sizes, key=lambda size: abs(size - w)) for w in wanted}))


def _check_operators(manifest: Manifest, path: Path) -> None:
    quantised = {manifest.precision, manifest.draft_precision} & {"int8", "int4"}
    if manifest.backend == "onnxruntime" and quantised:
        raise EngineError(
            f"{path} is {' and '.join(sorted(quantised))} in operators of ONNX Runtime's own; export it again with "
            "--backend tensorrt-rtx or --backend tensorrt"
        )


def _build_program(planned: Plan, program: Program, folder: Path, report: Report) -> Iterable[EngineRecord]:
    attends = any(binding.updates for binding in program.outputs)
    variants: tuple[Attention | None, ...] = planned.request.attention if attends else (None,)
    return [_build_engine(planned, program, attention, folder, report) for attention in variants]


def _build_engine(
    planned: Plan, program: Program, attention: Attention | None, folder: Path, report: Report
) -> EngineRecord:
    library, begin = planned.library, perf_counter()
    name = engine_name(library.backend, program.name, attention)
    log = kept_log(library.trt)
    log.clear()
    model = lowered(planned.models[program.name], planned.limits, attention)
    with watched() as peak:
        builder = library.trt.Builder(log)
        parsed = networks.parse(library, builder, log, model, planned.bundle.path)
        decomposable = _settle_attention(planned, parsed, model, attention)
        config = _config(planned, builder, program, parsed, lambda phase, part: report(f"{name}: {phase}", part))
        _serialise(planned, builder, parsed, config, log, folder / name)
    found = networks.census(library, parsed.network)
    return EngineRecord(
        file=name,
        program=program.name,
        attention=attention,
        bytes=(folder / name).stat().st_size,
        weight_bytes=memory_table({program.name: model}, (program,), planned.limits).weights,
        seconds=round(perf_counter() - begin, 1),
        host_bytes=peak.nbytes,
        attentions=found.attentions,
        cache_updates=found.cache_updates,
        plugins=found.plugins,
        decomposable=decomposable,
    )


def lowered(model: ModelProto, limits: Limits, attention: Attention | None) -> ModelProto:
    """The program as TensorRT takes it."""
    if attention is None:
        return choices_as_steps(without_shortcuts(static_cache(model, limits.cache_rows)))
    plain = written_out_softcap(static_cache(model, limits.cache_rows))
    return grouped_queries(plain) if attention == "grouped" else plain


def _settle_attention(planned: Plan, parsed: Parsed, model: ModelProto, attention: Attention | None) -> bool:
    """Returns whether attention may run as several kernels."""
    if attention is None:
        return False
    library, network = planned.library, parsed.network
    if attention == "grouped":
        networks.attend_directly(library, network, model)
        if library.attends_by_length:
            networks.attend_by_length(library, network)
    in_fp32 = planned.bundle.manifest.geometry.cache_dtype is Dtype.FLOAT
    if in_fp32:
        networks.allow_decomposition(library, network)
    return in_fp32


def _config(planned: Plan, builder: Any, program: Program, parsed: Parsed, report: Report) -> Any:
    library, request = planned.library, planned.request
    config = builder.create_builder_config()
    library.aim_at(config, request.compute_capabilities)
    library.for_capture(config)
    if request.workspace is not None:
        config.set_memory_pool_limit(library.trt.MemoryPoolType.WORKSPACE, request.workspace)
    for profile in profiles(program, planned.limits):
        config.add_optimization_profile(_optimization_profile(builder, program, profile))
    config.progress_monitor = monitor(library.trt, report)
    return config


def _optimization_profile(builder: Any, program: Program, profile: Profile) -> Any:
    made = builder.create_optimization_profile()
    for binding in program.inputs:
        ranges = [profile.ranges[d] if isinstance(d, Dim) else Range(low=d, usual=d, high=d) for d in binding.shape]
        made.set_shape(binding.name, *(tuple(getattr(r, size) for r in ranges) for size in ("low", "usual", "high")))
    return made


def _serialise(planned: Plan, builder: Any, parsed: Parsed, config: Any, log: Any, path: Path) -> None:
    """Build into the file, piece by piece: a whole engine in memory would be one more copy of the weights."""
    library, request = planned.library, planned.request
    known = request.timing_cache.read_bytes() if request.timing_cache and request.timing_cache.is_file() else b""
    timings = library.use_timing_cache(config, known)
    with path.open("wb") as file:
        writer = _writer(library, file)
        done = builder.build_serialized_network_to_stream(parsed.network, config, writer)
    if writer.fault is not None:
        raise EngineError(f"{path.name} can't be written: {writer.fault.strerror}")
    if not done:
        raise EngineError(f"{library.trt.__name__} {library.version} can't build {path.stem}: {log.told()}")
    if timings is not None and request.timing_cache is not None:
        request.timing_cache.write_bytes(bytes(timings.serialize()))


def _writer(library: Library, file: Any) -> Any:
    class Writer(library.trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            library.trt.IStreamWriter.__init__(self)
            self.fault: OSError | None = None

        def write(self, data: bytes) -> int:
            """The bytes that were taken. No exception may pass through the library that calls this."""
            try:
                return int(file.write(data))
            except OSError as e:
                self.fault = e
                return 0

    return Writer()


def _sidecar(planned: Plan, engines: tuple[EngineRecord, ...]) -> Sidecar:
    manifest = planned.bundle.manifest
    return Sidecar(
        schema_version=SCHEMA_VERSION, backend=planned.library.backend, version=planned.library.version,
        compute_capabilities=planned.request.compute_capabilities or (compute_capability(),),
        program_sha256={program: manifest.files[file].sha256 for program, file in manifest.programs.items()},
        weights_sha256=weights_sha256(planned.bundle), precision=manifest.precision,
        draft_precision=manifest.draft_precision, limits=planned.limits, engines=engines,
    )  # fmt: skip


def _list(bundle: Bundle, folder: Path, backend: str) -> None:
    """Move the files into the bundle, in place of what this backend had there, and list them in its manifest."""
    before = {name for name in bundle.manifest.files if name.startswith(f"{backend}.")}
    files = {name: record for name, record in bundle.manifest.files.items() if name not in before}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.name] = FileRecord(sha256=digest, bytes=path.stat().st_size)
    unfinished = folder / MANIFEST_FILE
    unfinished.write_text(bundle.manifest.model_copy(update={"files": files}).model_dump_json(indent=1), "utf-8")
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        path.replace(bundle.path / path.name)
    for name in before - set(files):
        (bundle.path / name).unlink(missing_ok=True)
