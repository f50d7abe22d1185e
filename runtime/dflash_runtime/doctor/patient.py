"""A bundle that is examined: its decoder, and where the checkpoints are at hand, the same programs in PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from dflash_engines.backend import Options, Programs
from dflash_engines.bundle import Bundle
from dflash_engines.errors import CheckpointError, EngineError
from dflash_engines.finding import Finding
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_runtime.bench.tally import Tally, tally
from dflash_runtime.completion import Completion
from dflash_runtime.decoder import Decoder
from dflash_runtime.prompt import Prompt

ENTRY_POINT_GROUP = "dflash.doctor"
Told = Callable[[str], object]
Check = Callable[["Patient"], list[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """`oracle` is None where PyTorch or the checkpoints aren't at hand; `why_no_oracle` tells."""

    bundle: Bundle
    decoder: Decoder
    questions: tuple[str, ...]
    new_tokens: int
    oracle: Programs | None
    why_no_oracle: str = ""

    @property
    def programs(self) -> Programs | None:
        """The bundle's own programs, where they run over host memory."""
        engine = self.decoder.engine
        return engine.programs if isinstance(engine, HostEngine) else None

    def prompt(self, question: str) -> Prompt:
        """As a chat where the model has a template, else as plain text."""
        return question if self.decoder.encoder.template is None else [{"role": "user", "content": question}]

    def answers(self, prompts: Sequence[Prompt], decoder: Decoder | None = None) -> list[Completion]:
        """Greedy, with whole blocks, each from scratch; prompts that leave no room are left out."""
        asked, room = decoder or self.decoder, (decoder or self.decoder).engine.limits.max_len - self.new_tokens
        found = []
        for prompt in prompts:
            tokens = asked.encoder.encode(prompt)
            if len(tokens) <= room:
                asked.forget()
                block = max(asked.engine.limits.block_sizes)
                found.append(asked.complete(tokens, max_new_tokens=self.new_tokens, block_size=block))
        return found

    def acceptance(self, prompts: Sequence[Prompt], decoder: Decoder | None = None) -> Tally:
        """Of those answers together."""
        return tally(self.answers(prompts, decoder))

    def decoder_of(self, programs: Programs) -> Decoder:
        """A decoder over other programs of the same bindings, with room for the questions only."""
        longest = max(len(self.decoder.encoder.encode(self.prompt(q))) for q in self.questions)
        room = min(longest + self.new_tokens, self.decoder.engine.limits.max_len)
        limits = host_limits(self.bundle, Options(slots=1, max_len=room))
        return Decoder(HostEngine(self.bundle, programs, limits))


def load_oracle(bundle: Bundle) -> tuple[Programs | None, str]:
    """The bundle's programs in PyTorch, or why they can't be had."""
    (point,) = entry_points(group=ENTRY_POINT_GROUP, name="oracle")
    try:
        load: Callable[[Bundle], Programs] = point.load()
        return load(bundle), ""
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("dflash_"):
            raise
        return None, f"needs {e.name!r}: pip install 'dflash-trt[export]'"
    except (CheckpointError, EngineError) as e:
        return None, f"needs the checkpoints that the bundle was made from: {e}"
