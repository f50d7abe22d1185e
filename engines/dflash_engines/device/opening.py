"""Opens a device, or says what this machine lacks."""

from typing import TYPE_CHECKING

from dflash_engines.errors import EngineError

if TYPE_CHECKING:
    from dflash_engines.device.cuda import CudaDevice


def open_cuda(ordinal: int = 0) -> "CudaDevice":
    """CUDA device `ordinal`. Raises EngineError where there is none."""
    try:
        from dflash_engines.device.cuda import CudaDevice
    except ModuleNotFoundError as e:
        raise EngineError(
            "CUDA needs the package cuda-bindings, which is not installed: pip install cuda-bindings"
        ) from e
    try:
        return CudaDevice(ordinal)
    except RuntimeError as e:  # the bindings look for the driver's library at the first call
        raise EngineError(f"no NVIDIA driver on this machine ({e}); install it, or use a backend for the CPU") from e
