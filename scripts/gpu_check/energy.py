"""Energy and how busy the GPU was over a stretch of work, where the driver's library tells."""

import importlib
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

from scripts.gpu_check.sections import Result

_WARM_SECONDS = 0.5


def over(work: Callable[[], int], seconds: float) -> Result:
    """Repeat `work`, which returns the tokens it made, for about `seconds`; joules per token and SM activity."""
    nvml = _library()
    if isinstance(nvml, str):
        return {"skipped": nvml}
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    _repeat(work, _WARM_SECONDS)
    before, samples = _millijoules(nvml, handle), _GpmSamples(nvml, handle)
    tokens, elapsed = _repeat(work, seconds)
    activity, after = samples.sm_activity(), _millijoules(nvml, handle)
    found: Result = {"tokens": tokens, "seconds": elapsed, "sm_activity": activity}
    if before is not None and after is not None:
        joules = (after - before) / 1000
        found |= {"joules": joules, "watts": joules / elapsed, "joules_per_token": joules / max(tokens, 1)}
    return found


def _repeat(work: Callable[[], int], seconds: float) -> tuple[int, float]:
    begin, tokens = perf_counter(), 0
    while perf_counter() - begin < seconds:
        tokens += work()
    return tokens, perf_counter() - begin


def _library() -> Any:
    """The bindings, ready; or why not."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as e:  # noqa: BLE001, the package or the driver may be missing, each in its own way
        return f"energy needs nvidia-ml-py and a driver: {type(e).__name__}: {e}"
    return nvml


def _millijoules(nvml: Any, handle: Any) -> int | None:
    """Since the driver was loaded; None on GPUs that don't count."""
    try:
        return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    except nvml.NVMLError:
        return None


class _GpmSamples:
    """The part of time in which multiprocessors had work, from two samples; Hopper and later have them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._first = self._sample()

    def sm_activity(self) -> float | str:
        """Percent; or why it isn't known."""
        sleep(0.15)  # samples lie at least a tenth of a second apart
        last = self._sample()
        if isinstance(self._first, str) or isinstance(last, str):
            return str(self._first if isinstance(self._first, str) else last)
        nvml = self._nvml
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        query.sample1, query.sample2 = self._first, last
        query.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        try:
            nvml.nvmlGpmMetricsGet(query)
        except nvml.NVMLError as e:
            return f"not told: {e}"
        return float(query.metrics[0].value)

    def _sample(self) -> Any:
        try:
            sample = self._nvml.nvmlGpmSampleAlloc()
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        except (AttributeError, self._nvml.NVMLError) as e:
            return f"not told: {e}"
        return sample
