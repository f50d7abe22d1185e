"""Engines on disk, and the sidecar that says what they are.

An engine is code, and of one backend's version, for some GPUs, from one program. So nothing is handed to TensorRT
before the sidecar agrees, and its hash with the bundle's manifest, which lists both.
"""

import hashlib
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits
from dflash_engines.errors import ContractError, EngineError
from dflash_engines.manifest import Precision
from dflash_engines.tensorrt.library import TensorRtBackend

# How attention is put to TensorRT: query heads that share keys as rows of one head, told the rows in use where that can
# be told; or as it was traced. Either may be the faster one, and the first load on a device finds out.
Attention = Literal["grouped", "traced"]
ATTENTIONS: tuple[Attention, ...] = ("grouped", "traced")
SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineRecord(_Record):
    """One engine file."""

    file: str
    program: str
    attention: Attention | None  # None for programs without attention
    bytes: int
    weight_bytes: int  # of the program's weights
    seconds: float  # to build
    host_bytes: int  # host memory at the build's peak, beside the mapped weights
    attentions: int  # fused ones, in the network it was built from
    cache_updates: int
    plugins: int  # none, ever: standard operators only
    decomposable: bool  # attention may run as several kernels: fp32 only


class Sidecar(_Record):
    """What the engines of one backend in a bundle were built from, with, and for."""

    schema_version: int
    backend: TensorRtBackend
    version: str  # of the library that built them
    compute_capabilities: tuple[str, ...]
    program_sha256: dict[str, str]
    weights_sha256: str
    precision: Precision
    draft_precision: Precision
    limits: Limits
    engines: tuple[EngineRecord, ...]

    def attentions(self) -> tuple[Attention, ...]:
        """The variants that there are engines of, the one expected to be fastest first."""
        found = {engine.attention for engine in self.engines}
        return tuple(variant for variant in ATTENTIONS if variant in found)


def sidecar_name(backend: TensorRtBackend) -> str:
    """The sidecar's file."""
    return f"{backend}.json"


def engine_name(backend: TensorRtBackend, program: str, attention: Attention | None) -> str:
    """An engine's file."""
    return ".".join(part for part in (backend, program, attention, "engine") if part)


def rebuild(bundle: Bundle, backend: TensorRtBackend, capabilities: tuple[str, ...] = ()) -> str:
    """The command that makes the engines anew."""
    aimed = f" --compute-capability {','.join(capabilities)}" if capabilities and backend == "tensorrt-rtx" else ""
    return f"dflash-export build {bundle.path} --backend {backend}{aimed}"


def read_sidecar(bundle: Bundle, backend: TensorRtBackend) -> Sidecar:
    """The engines of `backend` in `bundle`. Raises EngineError when there are none, or their description is damaged."""
    name = sidecar_name(backend)
    again = rebuild(bundle, backend)
    if not bundle.has(name):
        raise EngineError(f"{bundle.path} holds no engines for {backend}; build them: {again}")
    try:
        sidecar = Sidecar.model_validate_json(bundle.file(name).read_bytes())
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise EngineError(f"{bundle.path / name}: {where}: {first['msg']}; build again: {again}") from e
    except ContractError as e:
        raise EngineError(f"{bundle.path / name}: {e}; build again: {again}") from e
    if sidecar.schema_version != SCHEMA_VERSION or sidecar.backend != backend:
        raise EngineError(f"{bundle.path / name} was written by another release or for another backend; {again}")
    return sidecar


def check_programs(bundle: Bundle, sidecar: Sidecar) -> None:
    """Refuse engines that were built from other programs or weights. Raises EngineError naming the first."""
    again = rebuild(bundle, sidecar.backend, sidecar.compute_capabilities)
    for program, file in bundle.manifest.programs.items():
        if sidecar.program_sha256.get(program) != bundle.manifest.files[file].sha256:
            raise EngineError(f"{bundle.path}: the engine of {program!r} was built from another program; {again}")
    if sidecar.weights_sha256 != weights_sha256(bundle):
        raise EngineError(f"{bundle.path}: the engines were built from other weights; {again}")


def check_machine(bundle: Bundle, sidecar: Sidecar, version: str, capability: str) -> None:
    """Refuse engines that can't run with this library on this GPU. Raises EngineError: both sides, and the command.

    `capability` is the GPU's, "8.9" say.
    """
    if version == sidecar.version and capability in sidecar.compute_capabilities:
        return
    here = (capability,) if capability not in sidecar.compute_capabilities else sidecar.compute_capabilities
    raise EngineError(
        f"{bundle.path}: built with {sidecar.backend} {sidecar.version} for compute capability "
        f"{', '.join(sidecar.compute_capabilities)}, and this is {sidecar.backend} {version} on {capability}; "
        f"{rebuild(bundle, sidecar.backend, here)}"
    )


def read_plans(bundle: Bundle, sidecar: Sidecar, attention: Attention) -> Mapping[str, bytes]:
    """The engine of each program, with the attention asked for where it has any. Raises EngineError or BundleError."""
    return {
        engine.program: _verified(bundle, sidecar, engine)
        for engine in sidecar.engines
        if engine.attention in (None, attention)
    }


def _verified(bundle: Bundle, sidecar: Sidecar, engine: EngineRecord) -> bytes:
    """The file's content, if it is still what the manifest lists: it may have changed since the bundle was opened."""
    again = rebuild(bundle, sidecar.backend, sidecar.compute_capabilities)
    if not bundle.has(engine.file):
        raise EngineError(
            f"{bundle.path}: {engine.file!r} is not one of the bundle's files, so it is not loaded; {again}"
        )
    try:
        content = bundle.file(engine.file).read_bytes()
    except OSError as e:
        raise EngineError(f"{bundle.path / engine.file} can't be read ({e.strerror}); {again}") from e
    if hashlib.sha256(content).hexdigest() != bundle.manifest.files[engine.file].sha256:
        raise EngineError(f"{bundle.path / engine.file} is not the engine that was built; {again}")
    return content


def weights_sha256(bundle: Bundle) -> str:
    """Of the file that the programs' weights lie in; "" where all lie in the programs themselves."""
    record = bundle.manifest.files.get("weights.bin")
    return record.sha256 if record is not None else ""
