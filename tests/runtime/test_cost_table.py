from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits
from dflash_engines.engine import Engine, Timing
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime.cost_table import CostTable, measure

LIMITS = Limits(max_len=1001, max_batch=3, block_sizes=(2, 4, 8))


@dataclass
class Clockwork:
    """An engine whose iterations take a known time: 10 and one a row and slot, and one for each 100 live tokens."""

    limits: Limits
    now: float = 0.0
    placed: dict[int, int] = field(default_factory=dict)
    drafting: float = 0.0
    accepting: float = 0.0
    hiccups: int = 0  # every so many iterations, one takes twice as long
    launched: int = 0

    @property
    def timing(self) -> Timing:
        return Timing(prefill=0.0, draft=self.drafting, target=0.0, accept=self.accepting)

    def place(self, slot: int, anchor: int, start: int, limit: int) -> None:
        assert start == limit < self.limits.max_len
        self.placed[slot] = start

    def park(self, slot: int) -> None:
        del self.placed[slot]

    def clear(self, slot: int) -> None:
        assert not self.placed

    def launch(self, block_size: int) -> None:
        self.launched += 1
        draft, target, accept = seconds(len(self.placed), max(self.placed.values()), block_size)
        slow = 2 if self.hiccups and self.launched % self.hiccups == 0 else 1
        self.drafting += slow * draft
        self.accepting += slow * accept
        self.now += slow * (draft + target + accept)

    def collect(self) -> None:
        pass


def seconds(slots: float, length: float, block_size: int) -> tuple[float, float, float]:
    draft = 2.0 * block_size if block_size > 1 else 0.0
    return draft, 10 + slots * block_size + length / 100, 0.1 * block_size


def measured(monkeypatch: pytest.MonkeyPatch, clockwork: Clockwork, budget: float) -> CostTable:
    monkeypatch.setattr("dflash_runtime.cost_table.perf_counter", lambda: clockwork.now)
    return measure(cast("Engine", clockwork), budget=budget)


@pytest.mark.parametrize(("slots", "length"), [(1, 64), (3, 1000), (2, 64), (1, 500), (2.5, 300)])
def test_a_measured_table_gives_the_engines_times(monkeypatch: pytest.MonkeyPatch, slots: float, length: int) -> None:
    found = measured(monkeypatch, Clockwork(LIMITS, hiccups=5), budget=1e5).at(slots=slots, length=length)
    wanted = [seconds(slots, length, size) for size in (1, 2, 4, 8)]
    assert list(zip(found.draft, found.target, found.accept, strict=True)) == [pytest.approx(times) for times in wanted]
    assert found.total(3, 5.0).tolist() == pytest.approx([3 * draft + target + 5 * accept
                                                          for draft, target, accept in wanted])  # fmt: skip


def test_outside_of_what_was_measured_the_nearest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = measured(monkeypatch, Clockwork(LIMITS), budget=1e5)
    assert table.at(slots=9, length=5).target.tolist() == table.at(slots=3, length=64).target.tolist()


@pytest.mark.parametrize("budget", [0.0, 300.0, 2000.0, 8000.0])
def test_a_slow_engine_is_measured_more_coarsely(monkeypatch: pytest.MonkeyPatch, budget: float) -> None:
    clockwork = Clockwork(LIMITS)
    table = measured(monkeypatch, clockwork, budget)
    assert clockwork.now < budget + 12 * 60  # the coarsest grid once, and the two to know how slow it is
    assert table.block_sizes == (1, 2, 4, 8)
    at_most = table.at(slots=3, length=64)
    wanted = [seconds(3, 64, size) for size in (1, 2, 4, 8)]  # linear in the size, and so known in between
    assert at_most.target.tolist() == pytest.approx([target for _, target, _ in wanted])


def test_a_table_survives_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    table = measured(monkeypatch, Clockwork(LIMITS), budget=1e5)
    assert CostTable.from_json(table.as_json()) == table


@pytest.mark.parametrize("spoil", [{"draft": [[[1.0]]]}, {"target": None}, {"slots": "no"}, {"lengths": [1, 2]}])
def test_other_json_is_no_table(monkeypatch: pytest.MonkeyPatch, spoil: dict[str, Any]) -> None:
    fields = measured(monkeypatch, Clockwork(LIMITS), budget=1e5).as_json() | spoil
    with pytest.raises((ValueError, TypeError)):
        CostTable.from_json(fields)


def test_times_below_zero_are_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = measured(monkeypatch, Clockwork(LIMITS), budget=1e5).as_json()
    with pytest.raises(ValueError, match="none negative"):
        CostTable.from_json(fields | {"target": (-np.array(fields["target"])).tolist()})


def test_a_real_engine_is_left_as_it_was_found(bundle: Bundle) -> None:
    limits = replace(host_limits(bundle, Options(slots=2)), block_sizes=(2, 5))
    engine = HostEngine(bundle, OnnxRuntimePrograms(bundle, Options()), limits)
    table = measure(engine)
    assert (table.slots, table.block_sizes) == ((1, 2), (1, 2, 5))
    assert (table.at(slots=1, length=20).target > 0).all()
    assert table.at(slots=1, length=20).draft[0] == 0.0
    assert not any(buffer.any() for name, buffer in engine._arena.buffers.items() if "key" in name or "value" in name)
