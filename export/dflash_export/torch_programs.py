"""Torch modules as the programs of an engine on a device."""

from collections.abc import Mapping

import torch
from torch import nn

from dflash_engines.device.programs import DeviceArrays, Enqueue
from dflash_export.torch_device import TorchDevice


class TorchPrograms:
    """Implements `DevicePrograms`: each module takes the program's inputs in order, and returns its outputs."""

    capturable = True

    def __init__(self, device: TorchDevice, modules: Mapping[str, nn.Module]) -> None:
        self._device = device
        with device.translated():
            self._modules = {name: module.to(device.device) for name, module in modules.items()}

    def bind(self, program: str, profile: str, inputs: DeviceArrays, outputs: DeviceArrays) -> Enqueue:
        """See `DevicePrograms`."""
        module = self._modules[program]
        read, written = ([self._device.tensor(a) for a in arrays.values()] for arrays in (inputs, outputs))

        def enqueue() -> None:
            with self._device.translated(), torch.no_grad():
                for array, result in zip(written, module(*read), strict=True):
                    if result.data_ptr() != array.data_ptr():  # a module may write its caches in place
                        array.copy_(result)

        return enqueue

    def addresses(self) -> tuple[int, ...]:
        """See `DevicePrograms`: a module that was moved has its parameters elsewhere."""
        modules = self._modules.values()
        return tuple(parameter.data_ptr() for module in modules for parameter in list(module.parameters())[:1])

    def release(self) -> None:
        """See `DevicePrograms`. The modules are the caller's."""
        self._modules.clear()
