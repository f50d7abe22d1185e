"""The engine of CUDA graphs, over the host device and ONNX Runtime on the CPU."""

from typing import Any

from dflash_engines.backend import Options, Programs
from dflash_engines.bundle import Bundle
from dflash_engines.device.engine import DeviceEngine, Pair, Settings
from dflash_engines.device.host import HostDevice
from dflash_engines.device.programs import HostPrograms
from dflash_engines.host_engine import declared_programs, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms


def settings(slots: int, **changed: Any) -> Settings:
    usual: dict[str, Any] = {"batches": tuple(range(1, slots + 1)), "plain_rows": 2}
    return Settings(**(usual | changed))


def pair(bundle: Bundle) -> Pair:
    manifest = bundle.manifest
    return Pair(
        programs=declared_programs(manifest), geometry=manifest.geometry, mask_token_id=manifest.mask_token_id,
        bundle=bundle,
    )  # fmt: skip


def device_engine(
    bundle: Bundle,
    *,
    slots: int = 3,
    device: HostDevice | None = None,
    programs: Programs | None = None,
    **changed: Any,
) -> DeviceEngine:
    device = device or HostDevice()
    programs = programs or OnnxRuntimePrograms(bundle, Options(threads=1))
    limits = host_limits(bundle, Options(slots=slots))
    on_device = HostPrograms(device=device, programs=programs)
    return DeviceEngine(pair(bundle), device, on_device, limits, settings(slots, **changed))
