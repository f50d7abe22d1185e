"""Engines of PyTorch modules, from no bundle."""

from collections.abc import Mapping

from torch import nn

from dflash_engines import contract
from dflash_engines.contract import Geometry, Limits
from dflash_engines.device.engine import DeviceEngine, Pair, Settings
from dflash_export.programs import accept
from dflash_export.torch_device import TorchDevice
from dflash_export.torch_programs import TorchPrograms


def engine(
    modules: Mapping[str, nn.Module],
    geometry: Geometry,
    limits: Limits,
    mask_token_id: int,
    device: str,
    *,
    run_ahead: int = 1,
    graphs: bool = True,
) -> DeviceEngine:
    """`modules` are `target` and `draft`; acceptance is the product's, greedy."""
    declared = (contract.target(geometry), contract.draft(geometry), contract.accept(geometry))
    greedy = accept.variants(mask_token_id)[contract.GREEDY]
    on = TorchDevice(device)
    programs = TorchPrograms(on, {**modules, "accept": greedy})
    settings = Settings(
        batches=(limits.max_batch,), plain_rows=max(2, min(limits.block_sizes)), run_ahead=run_ahead, graphs=graphs
    )
    pair = Pair(programs=declared, geometry=geometry, mask_token_id=mask_token_id)
    return DeviceEngine(pair, on, programs, limits, settings)
