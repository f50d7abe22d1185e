"""The trained tiny pair on a device: PyTorch's modules over the host device and over PyTorch's own, against the
host engine, and the golden cases that tell a wrong engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash_engines import contract
from dflash_engines.backend import Buffers, Programs, Run
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits
from dflash_engines.controls import Controls
from dflash_engines.device.device import Device
from dflash_engines.device.engine import DeviceEngine, Settings
from dflash_engines.device.host import HostDevice
from dflash_engines.device.loading import pair_of
from dflash_engines.device.programs import DevicePrograms, HostPrograms
from dflash_engines.device.proof import prove
from dflash_engines.engine import Engine
from dflash_engines.errors import EngineError
from dflash_engines.golden import Golden, Runner
from dflash_engines.host_engine import HostEngine, declared_programs
from dflash_engines.manifest import Manifest, ModelSource
from dflash_engines.sampling import SamplingParameters
from dflash_export import golden_cases
from dflash_export.checkpoint import locate
from dflash_export.programs.build import Modules, assemble, load_pair
from dflash_export.pytorch_backend import PytorchPrograms
from dflash_export.torch_device import TorchDevice
from dflash_export.torch_programs import TorchPrograms
from dflash_runtime.loop import DecodeLoop, Progress
from dflash_runtime.request import Request
from tests.models.tiny_pair import DRAFTER, TARGET, load_tiny_pair

SLOTS, BLOCK, MAX_LEN, TOLERANCE = 2, 8, 192, 5e-3
VARIANTS = contract.ACCEPT_VARIANTS
Made = tuple[Device, DevicePrograms]


@pytest.fixture(scope="module")
def modules() -> Modules:
    models = load_pair(locate(str(TARGET)), locate(str(DRAFTER)))
    return assemble(models, draft_vocab=None, hidden_output=False)


@pytest.fixture(scope="module")
def programs(modules: Modules) -> PytorchPrograms:
    return PytorchPrograms(modules)


@pytest.fixture(scope="module")
def bundle(modules: Modules) -> Bundle:
    """The manifest of what would be exported; no file is read."""
    source = ModelSource(id="tiny", revision="local", sha256="0" * 64)
    names = ("target", "draft", "draft_noise", *(variant.name for variant in VARIANTS))
    manifest = Manifest(
        schema_version=1, target=source, drafter=source, architecture="llama", geometry=modules.geometry,
        limits=Limits(max_len=MAX_LEN, max_batch=SLOTS, prefill_chunk=16, block_sizes=(2, 3, BLOCK)),
        target_layer_ids=(0,), block_size=BLOCK, mask_token_id=modules.draft.drafter.config.mask_token_id,
        stop_token_ids=(), draft_vocab_size=modules.geometry.vocab_size, precision="fp32", draft_precision="fp32",
        hidden_output=False, programs={name: f"{name}.onnx" for name in names}, parity={}, exporter={}, files={},
    )  # fmt: skip
    return Bundle(path=Path("tiny"), manifest=manifest)


@pytest.fixture(scope="module")
def golden(bundle: Bundle, programs: PytorchPrograms) -> Golden:
    runner = Runner(programs, declared_programs(bundle.manifest), bundle.manifest.limits)
    prompts = (range(20, 40), range(50, 90, 3))
    return golden_cases.record(runner, prompts, BLOCK, bundle.manifest.mask_token_id, TOLERANCE)


def device_engine(bundle: Bundle, made: Made, slots: int = SLOTS) -> DeviceEngine:
    limits = replace(bundle.manifest.limits, max_batch=slots)
    return DeviceEngine(pair_of(bundle), *made, limits, Settings(batches=(slots,), plain_rows=2))


def on_host(programs: Programs) -> Made:
    device = HostDevice()
    return device, HostPrograms(device=device, programs=programs)


def on_torch(programs: PytorchPrograms) -> Made:
    device = TorchDevice("cpu")
    return device, TorchPrograms(device, programs.modules)


@pytest.fixture(params=[on_host, on_torch])
def engine(request: pytest.FixtureRequest, bundle: Bundle, programs: PytorchPrograms) -> Iterator[DeviceEngine]:
    engine = device_engine(bundle, request.param(programs))
    yield engine
    engine.close()


def requests() -> list[Request]:
    pair = load_tiny_pair()
    sampled = SamplingParameters(temperature=0.9, top_p=0.9, seed=11)
    drawn = SamplingParameters(temperature=0.9, seed=12, draft_temperature=0.9)
    penalised = SamplingParameters(controls=Controls(repetition_penalty=1.3, frequency_penalty=0.2, logprobs=2))
    plain = Request(tokens=(1,), max_new_tokens=16, stop_token_ids=frozenset(), block_size=BLOCK)
    questions = ("What is the capital of France?", "Count to ten.", "Hi")
    prompts = [tuple(pair.encode(question)) for question in questions]
    rules = (
        (plain.sampling, BLOCK),
        (sampled, 3),
        (sampled, 1),
        (drawn, BLOCK),
        (penalised, BLOCK),
        (plain.sampling, 1),
    )
    return [
        replace(plain, tokens=prompts[i % len(prompts)], sampling=sampling, block_size=size)
        for i, (sampling, size) in enumerate(rules)
    ]


def answers(engine: Engine) -> list[list[tuple[int | float, ...]]]:
    """Tokens and log-probabilities of six requests over two slots."""
    loop, waiting, running = DecodeLoop(engine), list(enumerate(requests())), dict[int, int]()
    found: list[list[tuple[int | float, ...]]] = [[] for _ in waiting]
    while waiting or any(slot.request is not None for slot in loop.slots):
        for slot in range(SLOTS):
            if loop.slots[slot].request is None and waiting:
                running[slot], asked = waiting.pop(0)
                loop.admit(slot, asked)
        for event in loop.step():
            assert isinstance(event, Progress)
            reported = [token.logprob for token in event.logprobs]
            found[running[event.slot]] += [(token,) for token in event.token_ids] + [(value,) for value in reported]
    return found


def test_answers_are_those_of_the_host_engine(bundle: Bundle, programs: PytorchPrograms, engine: DeviceEngine) -> None:
    assert answers(engine) == answers(HostEngine(bundle, programs, bundle.manifest.limits))
    assert engine.counts.replays > 0


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_golden_cases_pass_at_the_shapes_of_the_engine(
    bundle: Bundle, programs: PytorchPrograms, golden: Golden, slots: int
) -> None:
    """Two slots one after the other, together, and beside an idle one."""
    made = device_engine(bundle, on_torch(programs), slots)
    assert prove(made, golden) <= TOLERANCE / 10
    made.close()


class Wrong:
    """Programs of which one is made wrong on its way."""

    def __init__(self, programs: Programs, spoil: Callable[[str, Buffers], None]) -> None:
        self._programs, self._spoil = programs, spoil

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        run = self._programs.bind(program, inputs, outputs)

        def wrong() -> None:
            run()
            self._spoil(program, outputs)

        return wrong


def one_row_off(program: str, outputs: Buffers) -> None:
    if program == "target" and outputs["logits"].shape[1] > 1:
        outputs["logits"][:] = np.roll(outputs["logits"], 1, axis=1)


def accepts_one_more(program: str, outputs: Buffers) -> None:
    if program == "accept":
        outputs["accepted"][:] += 1


def zeros(program: str, outputs: Buffers) -> None:
    if program == "draft":
        outputs["confidence"][:] = 0


def a_cache_that_is_not_written(program: str, outputs: Buffers) -> None:
    if program == "target":
        outputs["new_target_key_1"][:] = 0


@pytest.mark.parametrize("spoil", [one_row_off, accepts_one_more, zeros, a_cache_that_is_not_written])
def test_an_engine_that_computes_something_else_is_refused(
    bundle: Bundle, programs: PytorchPrograms, golden: Golden, spoil: Callable[[str, Buffers], None]
) -> None:
    made = device_engine(bundle, on_host(Wrong(programs, spoil)))
    with pytest.raises(EngineError, match="golden case"):
        prove(made, golden)
    made.close()
