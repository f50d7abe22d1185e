"""The choice of block sizes on recorded acceptance: the demo pair, 4 answers of each set, up to 96 tokens.

`acceptance.npz` and `costs.json` were made by scripts/adaptive.py on one CPU thread, see docs/adaptive.md.
"""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash_runtime.cost_table import CostTable
from dflash_runtime.replay import Answer, Recording, adaptive, fixed, together, walk

DATA = Path(__file__).parent / "data"
RECORDING = Recording.load(DATA / "acceptance.npz")
COSTS = CostTable.from_json(json.loads((DATA / "costs.json").read_text()))
EVALUATED, HOSTILE = ("gsm8k", "humaneval", "mbpp", "mt_bench"), ("foreign", "random")
# Another machine: rows cost nothing, and a launch of the drafter a tenth of the target's pass.
FLAT = CostTable(
    slots=(1,), lengths=(1,), block_sizes=COSTS.block_sizes, draft=(((0.0, *[0.1] * 7),),), target=(((1.0,) * 8,),),
    accept=(((0.0,) * 8,),),
)  # fmt: skip


def part(name: str) -> Recording:
    return replace(RECORDING, answers=tuple(answer for answer in RECORDING.answers if answer.set_name == name))


def mixture() -> Recording:
    """One answer of each evaluation set in turn."""
    turns = itertools.zip_longest(*(part(name).answers for name in EVALUATED))
    return replace(RECORDING, answers=tuple(answer for turn in turns for answer in turn if answer is not None))


def speed(recording: Recording, costs: CostTable, block_size: int) -> float:
    return together(fixed(recording, costs, block_size)).tokens_per_second


def best_fixed(recording: Recording, costs: CostTable) -> float:
    return max(speed(recording, costs, size) for size in costs.block_sizes)


def test_every_set_is_there() -> None:
    assert {answer.set_name for answer in RECORDING.answers} == {*EVALUATED, *HOSTILE}
    assert RECORDING.block_sizes == tuple(range(2, 9))


@pytest.mark.parametrize("costs", [COSTS, FLAT], ids=["measured", "flat"])
@pytest.mark.parametrize("name", EVALUATED)
def test_it_is_within_3_percent_of_the_best_fixed_size_on_each_set(name: str, costs: CostTable) -> None:
    recording = part(name)
    found = together(adaptive(recording, costs)).tokens_per_second
    assert found > 0.97 * best_fixed(recording, costs)


def test_it_beats_every_fixed_size_on_their_mixture() -> None:
    assert together(adaptive(mixture(), COSTS)).tokens_per_second > best_fixed(mixture(), COSTS)


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_never_more_than_3_percent_slower_than_plain(name: str) -> None:
    """Each text alone, on an engine that has seen nothing; the largest block loses more."""
    recording = part(name)
    plain = speed(recording, COSTS, 1)
    assert together(adaptive(recording, COSTS)).tokens_per_second > 0.97 * plain
    assert speed(recording, COSTS, 8) < 0.97 * plain


def test_nor_is_it_after_texts_that_were_easy() -> None:
    """History is a prior, and a request's own passes soon weigh more."""
    easy, hostile = part("gsm8k"), part("random")
    after = replace(RECORDING, answers=(*easy.answers, *hostile.answers))
    found = together(adaptive(after, COSTS)[len(easy.answers) :]).tokens_per_second
    assert found > 0.97 * speed(hostile, COSTS, 1)


def test_a_walk_gains_what_was_recorded() -> None:
    accepted = np.array([[1, 2], [0, 0], [1, 1], [0, 0], [0, 0]], np.uint8)
    answer = Answer(set_name="any", prompt_tokens=7, accepted=accepted)
    seen: list[tuple[int, int]] = []
    lengths: list[int] = []

    def choose(length: int, at: int) -> int:
        lengths.append(length)
        return {0: 2, 2: 3}.get(at, 1)

    found = walk(answer, (2, 3), FLAT, choose, lambda size, gained: seen.append((size, gained)))
    assert seen == [(2, 2), (3, 2), (1, 1)]
    assert lengths == [7, 9, 11]
    assert (found.tokens, found.block_sizes) == (5, (2, 3, 1))
    assert found.seconds == pytest.approx(1.1 + 1.1 + 1.0)


def test_a_recording_survives_its_file(tmp_path: Path) -> None:
    RECORDING.save(tmp_path / "r.npz")
    again = Recording.load(tmp_path / "r.npz")
    assert again.block_sizes == RECORDING.block_sizes
    for one, other in zip(again.answers, RECORDING.answers, strict=True):
        assert (one.set_name, one.prompt_tokens) == (other.set_name, other.prompt_tokens)
        assert np.array_equal(one.accepted, other.accepted)
