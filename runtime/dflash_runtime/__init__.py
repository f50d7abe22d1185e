"""The runtime: load a bundle, decode without loss. Never imports torch."""

from dflash_runtime.completion import Completion, Step, TimeSplit
from dflash_runtime.decoder import Decoder, finish

__all__ = ["Completion", "Decoder", "Step", "TimeSplit", "finish"]
