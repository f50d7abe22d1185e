"""How near a synthetic 8-billion-parameter pair comes to the device's memory bandwidth."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from dflash_engines.contract import Limits
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.device.iteration import bind
from dflash_engines.device.layout import sizes
from dflash_export.torch_device import TorchDevice
from scripts.gpu_check import energy
from scripts.gpu_check.machine import device_name
from scripts.gpu_check.pairs import engine
from scripts.gpu_check.sections import Result
from scripts.gpu_check.synthetic import QWEN3_8B, SMALL, Size, SyntheticDraft, SyntheticTarget

MASK_TOKEN_ID = 1
PROMPT = 256  # live rows while it is timed
_COPIED = 1 << 30  # bytes
_ENERGY_SECONDS = 4.0


def speed(rehearse: bool) -> Result:
    """Programs and iterations of a pair of Qwen3-8B's shape, in seconds and as fractions of bytes over bandwidth."""
    device, size = device_name(rehearse), SMALL if rehearse else QWEN3_8B
    rounds = 2 if rehearse else 30
    target = SyntheticTarget(size, device)
    modules = {"target": target, "draft": SyntheticDraft(target, MASK_TOKEN_ID)}
    limits = Limits(max_len=size.max_len, max_batch=1, prefill_chunk=16, block_sizes=(size.block,))
    bandwidth = copy_bandwidth(device, 1 << 16 if rehearse else _COPIED)
    found: Result = {"parameters": parameters(target), "copy_bytes_a_second": bandwidth}
    found["memory_before"] = memory(device)

    def made(**how: Any) -> DeviceEngine:
        return engine(modules, size.geometry, limits, MASK_TOKEN_ID, device, **how)

    usual = made()
    start = min(PROMPT, size.max_len // 2)
    found["programs"] = {
        name: as_fraction(seconds, moved, bandwidth)
        for name, seconds, moved in _programs(usual, size, modules, start, rounds)
    }
    moved = bytes_of_iteration(modules, size, start)
    found["iteration"] = as_fraction(iteration(usual, size.block, start, rounds)["seconds"], moved, bandwidth)
    found["host_seconds_an_iteration"] = host_seconds(usual, size.block, start, rounds)
    found["memory_during"] = memory(device)
    found["kernels_an_iteration"] = kernels(usual, size.block, start) if not rehearse else "needs a GPU"
    found["energy"] = energy.over(lambda: _some_tokens(usual, size.block, start), 0.2 if rehearse else _ENERGY_SECONDS)
    usual.close()
    others: dict[str, dict[str, Any]] = {"without_run_ahead": {"run_ahead": 0}, "without_graphs": {"graphs": False}}
    for name, how in others.items():
        other = made(**how)
        found[name] = iteration(other, size.block, start, rounds)
        other.close()
    found["memory_after"] = memory(device)
    return found


def parameters(module: torch.nn.Module) -> int:
    """How many numbers its weights have."""
    return sum(p.numel() for p in module.parameters())


def copy_bandwidth(device: str, nbytes: int) -> float:
    """Bytes read and written in a second by a copy within the device: what a program can hope for."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    to = torch.empty_like(source)
    timed = [_seconds(device, lambda: to.copy_(source)) for _ in range(12)]
    return 2 * nbytes / median(timed[2:])


def _seconds(device: str, work: Callable[[], object]) -> float:
    synchronise(device)
    begin = perf_counter()
    work()
    synchronise(device)
    return perf_counter() - begin


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def memory(device: str) -> Result | str:
    """Bytes in use on the device, and by this process's tensors."""
    if device == "cpu":
        return "needs a GPU"
    free, total = torch.cuda.mem_get_info()
    return {
        "in_use": total - free,
        "of_tensors": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
    }


def as_fraction(seconds: float, moved: int, bandwidth: float) -> Result:
    """Of the device's bandwidth: 1 is the fastest that these bytes can be moved."""
    return {"seconds": seconds, "bytes": moved, "of_bandwidth": moved / bandwidth / seconds}


def bytes_of_iteration(modules: dict[str, torch.nn.Module], size: Size, live: int) -> int:
    """Of drafter and target together; each reads the head."""
    return sum(bytes_read(module, size, live, layers) for module, layers in _readers(modules, size))


def _readers(modules: dict[str, torch.nn.Module], size: Size) -> tuple[tuple[torch.nn.Module, int], ...]:
    return (modules["draft"], size.draft_layers), (modules["target"], size.layers)


def bytes_read(module: torch.nn.Module, size: Size, live: int, layers: int) -> int:
    """Its weights but for the embedding table, and its caches' rows up to `live`."""
    weights = 2 * (parameters(module) - size.vocab * size.hidden)
    return weights + 2 * 2 * layers * size.kv_heads * size.head_dim * live


def _programs(
    usual: DeviceEngine, size: Size, modules: dict[str, torch.nn.Module], live: int, rounds: int
) -> list[tuple[str, float, int]]:
    """Seconds and bytes of single programs, each a graph of its own."""
    (draft, draft_layers), (target, layers) = _readers(modules, size)
    timed = []
    for label, name, rows, module, depth in (
        ("target S=1", "target", 1, target, layers),
        (f"target S={size.block}", "target", size.block, target, layers),
        (f"draft K={size.block}", "draft", size.block, draft, draft_layers),
    ):
        timed.append((label, program_seconds(usual, name, rows, live, rounds), bytes_read(module, size, live, depth)))
    return timed


def program_seconds(usual: DeviceEngine, name: str, rows: int, live: int, rounds: int) -> float:
    """Of one run, by the device's clock, among many without a pause."""
    device = usual.device
    arrays = usual.arena.iteration_arrays(name, sizes(usual.limits, slots=1, rows_in=rows, rows_out=rows))
    for binding, value in (("start", live), ("length", live + rows)):
        host = torch.tensor([value]).numpy()
        device.write(arrays[binding].buffer, arrays[binding].offset, host)
    run = bind(usual.arena, usual.programs, name, f"block_{rows}", arrays)
    run()
    device.synchronize()
    graph, begin, end = device.capture(run), device.event(), device.event()
    device.launch(graph)
    device.record(begin)
    for _ in range(rounds):
        device.launch(graph)
    device.record(end)
    device.synchronize()
    device.drop(graph)
    usual.discard()
    return device.seconds(begin, end) / rounds


def _restart(usual: DeviceEngine, start: int) -> None:
    usual.discard()
    usual.place(0, 5, start, usual.limits.max_len)


def iteration(usual: DeviceEngine, block_size: int, start: int, rounds: int) -> Result:
    """Wall-clock seconds of one iteration among many, and how they were run."""
    _restart(usual, start)
    for turn in range(2 + rounds):
        if turn == 2:
            usual.device.synchronize()
            begin = perf_counter()
        while usual.can_launch:
            usual.launch(block_size)
        usual.collect()
    seconds = (perf_counter() - begin) / rounds
    counts = usual.counts
    return {"seconds": seconds, "replays": counts.replays, "without_graph": counts.launches_without_graph,
            "why": counts.reason}  # fmt: skip


def host_seconds(usual: DeviceEngine, block_size: int, start: int, rounds: int) -> float:
    """The host's share: launching, and reading what is there already."""
    _restart(usual, start)
    spent = []
    for _ in range(rounds):
        begin = perf_counter()
        usual.launch(block_size)
        launched = perf_counter() - begin
        usual.device.synchronize()
        begin = perf_counter()
        usual.collect()
        spent.append(launched + perf_counter() - begin)
    return median(spent)


def kernels(usual: DeviceEngine, block_size: int, start: int) -> int:
    """Kernels and copies of one iteration, as PyTorch's profiler saw them run."""
    from torch.profiler import ProfilerActivity, profile

    assert isinstance(usual.device, TorchDevice)
    _restart(usual, start)
    usual.launch(block_size)
    usual.collect()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        usual.launch(block_size)
        usual.collect()
        usual.device.synchronize()
    return sum(1 for event in seen.events() if "CUDA" in str(event.device_type))


def _some_tokens(usual: DeviceEngine, block_size: int, start: int) -> int:
    """A stretch of iterations; the tokens they gained."""
    _restart(usual, start)
    gained = 0
    for _ in range(20):
        while usual.can_launch:
            usual.launch(block_size)
        gained += int(usual.collect().accepted[0]) + 1
    return gained
