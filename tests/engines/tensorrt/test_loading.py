"""Which variant of attention a load keeps, what it refuses, and what it remembers. GPU and library are stand-ins."""

from pathlib import Path
from typing import Any, cast

import pytest

from dflash_engines.backend import Options
from dflash_engines.contract import Limits
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.errors import DeviceError, EngineError
from dflash_engines.tensorrt.engine_files import Attention, Sidecar
from dflash_engines.tensorrt.loading import check_options, choose, keep_choice, kept_choice

BOTH: tuple[Attention, ...] = ("grouped", "traced")
SIDECAR = Sidecar(
    schema_version=1, backend="tensorrt-rtx", version="1", compute_capabilities=("8.9",), program_sha256={},
    weights_sha256="", precision="fp16", draft_precision="fp16", limits=Limits(max_len=64, max_batch=2), engines=(),
)  # fmt: skip


class Loaded:
    """An engine as slow as it is told."""

    closed = False

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def close(self) -> None:
        self.closed = True


def chosen(outcomes: dict[Attention, float | EngineError]) -> tuple[Any, list[Loaded]]:
    made: list[Loaded] = []

    def load(attention: Attention) -> DeviceEngine:
        outcome = outcomes[attention]
        if isinstance(outcome, EngineError):
            raise outcome
        made.append(Loaded(outcome))
        return cast("DeviceEngine", made[-1])

    return choose(BOTH, load, lambda engine: cast("Any", engine).seconds), made


def test_the_fastest_that_passes_is_kept_and_all_are_given_back() -> None:
    choice, made = chosen({"traced": 2.0, "grouped": 1.0})
    assert (choice.attention, choice.seconds, choice.refused) == ("grouped", 1.0, {})
    assert all(engine.closed for engine in made)


def test_one_that_computes_something_else_is_not_used_however_fast() -> None:
    choice, _ = chosen({"traced": 2.0, "grouped": EngineError("golden case 3 (draft): block is off")})
    assert choice.attention == "traced"
    assert "golden case 3" in choice.refused["grouped"]


def test_none_that_passes_is_an_error_with_every_reason() -> None:
    with pytest.raises(EngineError, match=r"grouped: golden case 3; attention by traced: out of memory"):
        chosen({"traced": EngineError("out of memory"), "grouped": EngineError("golden case 3")})


def test_a_device_that_is_lost_ends_the_search() -> None:
    with pytest.raises(DeviceError):
        chosen({"traced": 1.0, "grouped": DeviceError("illegal address")})


def test_a_choice_is_remembered_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    choice, _ = chosen({"traced": 2.0, "grouped": EngineError("golden case 3")})
    folder = tmp_path / "kept"
    assert kept_choice(folder) is None
    keep_choice(folder, choice)
    assert kept_choice(folder) == choice
    for damage in ("", "{}", '{"attention": 1', '["traced"]'):
        (folder / "choice.json").write_text(damage)
        assert kept_choice(folder) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(max_len=32), "hold 64 tokens, not 32; rebuild --max-len"),
        (Options(slots=3), "have 2 slots, not 3; rebuild --max-batch"),
        (Options(provider="cuda"), "has no execution providers"),
    ],
)
def test_engines_have_one_size(options: Options, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check_options(SIDECAR, options, "rebuild")
    check_options(SIDECAR, Options(max_len=64, slots=2), "rebuild")
