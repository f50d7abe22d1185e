"""The GPU of this machine, as far as engines depend on it. Has not run on a GPU yet."""

from dflash_engines.errors import EngineError


def compute_capability(ordinal: int = 0) -> str:
    """Of CUDA device `ordinal`, "8.9" say. Raises EngineError where there is none."""
    try:
        from cuda.bindings import driver
    except ModuleNotFoundError as e:
        raise EngineError(f"asking for the GPU needs the package {e.name!r}: pip install cuda-bindings") from e
    from dflash_engines.device.cuda_check import Checker

    checked, names = Checker(), driver.CUdevice_attribute
    try:
        checked(driver.cuInit, 0)
    except RuntimeError as e:  # the bindings look for the driver's library at the first call
        raise EngineError(f"no NVIDIA driver on this machine ({e}); build with --backend tensorrt-rtx") from e
    device = checked(driver.cuDeviceGet, ordinal)
    attributes = (
        names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )
    return ".".join(str(checked(driver.cuDeviceGetAttribute, attribute, device)) for attribute in attributes)
