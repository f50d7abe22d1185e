"""What this machine is: the GPU, its driver, the packages, and which backends load."""

import importlib
import importlib.metadata
import platform
from typing import Any

from scripts.gpu_check.sections import Result, SkippedSectionError

PACKAGES = ("torch", "numpy", "transformers", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt_rtx",
            "cuda-bindings", "cuda-python", "nvidia-ml-py", "pydantic", "ml_dtypes")  # fmt: skip
MODULES = {
    "pytorch": "dflash_export.pytorch_backend",
    "onnxruntime": "dflash_engines.onnxruntime_cpu",
    "onnxruntime-cuda": "dflash_engines.onnxruntime_cuda",
    "tensorrt": "tensorrt",
    "tensorrt-rtx": "tensorrt_rtx",
    "cuda driver bindings": "cuda.bindings.driver",
}


def machine(rehearse: bool) -> Result:
    """The GPU, the packages' versions, and every backend's module, or why it doesn't load."""
    found: Result = {"python": platform.python_version(), "packages": {name: _version(name) for name in PACKAGES}}
    found["backends"] = {name: _loads(module) for name, module in MODULES.items()}
    torch = importlib.import_module("torch")
    if not rehearse:
        require_gpu()
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        found["gpu"] = {
            "name": properties.name, "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count, "memory_bytes": total, "free_bytes": free,
            "cuda_of_torch": torch.version.cuda,
        }  # fmt: skip
    return found


def require_gpu() -> None:
    """Raises SkippedSectionError where PyTorch sees no GPU."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise SkippedSectionError(f"needs a GPU: PyTorch {torch.__version__} sees none")


def device_name(rehearse: bool) -> str:
    """PyTorch's name of the device that is checked."""
    if rehearse:
        return "cpu"
    require_gpu()
    return "cuda:0"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _loads(module: str) -> Any:
    try:
        importlib.import_module(module)
    except Exception as e:  # noqa: BLE001, a library may fail in its own way when it is imported
        return f"{type(e).__name__}: {e}"
    return True
