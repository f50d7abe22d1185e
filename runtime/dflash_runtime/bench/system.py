"""What is measured: anything that turns a prompt's token ids into an answer's."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.host_engine import HostEngine, SingleRowEngine
from dflash_runtime.completion import Completion
from dflash_runtime.cost_cache import cached_costs
from dflash_runtime.decoder import Decoder

PLAIN, SINGLE_ROW = "plain", "plain, calls of one row"
DRAFTED, WHOLE_BLOCKS = "with the drafter", "with the drafter, whole blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer, and the seconds from the prompt's first token to the last of the answer."""

    token_ids: tuple[int, ...]
    seconds: float
    completion: Completion | None = None  # of our own systems


class System(Protocol):
    """Answers greedily, one prompt at a time."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> Run:
        """Answer from scratch: nothing is reused of a prompt that came before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSystem:
    """A decoder at one block size; None lets each pass have the size that pays best."""

    name: str
    decoder: Decoder
    block_size: int | None

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> Run:
        """See System."""
        self.decoder.forget()
        begin = perf_counter()
        found = self.decoder.complete(prompt, max_new_tokens=max_new_tokens, block_size=self.block_size)
        return Run(token_ids=found.token_ids, seconds=perf_counter() - begin, completion=found)


def own_systems(decoder: Decoder) -> list[System]:
    """Plain decoding, which is the baseline; the drafter; on the host, the fastest that plain decoding could be."""
    systems: list[System] = [
        DecoderSystem(name=PLAIN, decoder=decoder, block_size=1),
        DecoderSystem(name=DRAFTED, decoder=decoder, block_size=None),
        DecoderSystem(name=WHOLE_BLOCKS, decoder=decoder, block_size=max(decoder.engine.limits.block_sizes)),
    ]
    engine = decoder.engine
    if isinstance(engine, HostEngine):
        single = Decoder(SingleRowEngine(engine.bundle, engine.programs, engine.limits))
        systems.append(DecoderSystem(name=SINGLE_ROW, decoder=single, block_size=1))
    return systems


def load_decoder(bundle: Bundle, backend: str, threads: int | None, max_len: int | None = None) -> Decoder:
    """One slot of `bundle`."""
    engine = load_engine(bundle, backend, Options(threads=threads, slots=1, max_len=max_len))
    return Decoder(engine, cached_costs(engine, backend=backend, threads=threads))
