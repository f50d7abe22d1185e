"""What a backend offers to an engine on a device, and the backends in host memory seen that way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dflash_engines.backend import Programs
from dflash_engines.device.device import DeviceArray
from dflash_engines.device.host import HostDevice

Enqueue = Callable[[], None]
DeviceArrays = Mapping[str, DeviceArray]


class DevicePrograms(Protocol):
    """A bundle's programs on a device."""

    @property
    def capturable(self) -> bool:
        """Whether a graph can hold what `bind` enqueues; a backend may have graphs of its own instead."""
        ...

    def bind(self, program: str, profile: str, inputs: DeviceArrays, outputs: DeviceArrays) -> Enqueue:
        """A function that puts one run of `program` over these arrays in the stream.

        `profile` is the contract's name for calls of this kind. Arrays are named as in the contract; an output at
        the address of an input is updated in place. The function raises EngineError when the run can't be started.
        """
        ...

    def addresses(self) -> tuple[int, ...]:
        """Addresses of the backend's own that graphs have learnt; a graph made under others must not run."""
        ...

    def release(self) -> None:
        """Give everything back. Called once, when the stream is empty and the graphs are gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrograms:
    """Implements `DevicePrograms` over host memory with a backend's `Programs`."""

    device: HostDevice
    programs: Programs
    capturable: bool = True

    def bind(self, program: str, profile: str, inputs: DeviceArrays, outputs: DeviceArrays) -> Enqueue:
        """See `DevicePrograms`."""
        read, written = ({name: self.device.view(a) for name, a in arrays.items()} for arrays in (inputs, outputs))
        run = self.programs.bind(program, read, written)
        return lambda: self.device.enqueue(run)

    def addresses(self) -> tuple[int, ...]:
        """See `DevicePrograms`."""
        return ()

    def release(self) -> None:
        """See `DevicePrograms`."""
