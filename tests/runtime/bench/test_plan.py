import pytest

from dflash_engines.errors import RequestError
from dflash_runtime.bench.plan import MODES, PRESETS, Pace, Plan, Room, costs, fitted, fitting
from dflash_runtime.bench.system import PLAIN

PACE = Pace(prompt_token=0.001, answer_token={PLAIN: 0.02, "other": 0.03})
ROOM = Room(block_sizes=7, max_len=1024, prompt=100)


def total(plan: Plan) -> float:
    return sum(costs(plan, PACE, ROOM).values())


def test_offline_costs_every_answer_of_every_system() -> None:
    plan = Plan(sets=("gsm8k", "mbpp"), prompts=3, new_tokens=10, repeats=2)
    assert costs(plan, PACE, ROOM) == {"offline": pytest.approx(3 * 2 * 2 * (2 * 0.1 + 0.2 + 0.3))}


def test_every_mode_has_a_cost() -> None:
    found = costs(Plan(modes=MODES), PACE, ROOM)
    assert set(found) == set(MODES) and min(found.values()) > 0


def test_a_plan_is_cut_to_the_time_there_is() -> None:
    plan = PRESETS["report"]
    small = fitted(plan, 260.0, total)
    assert total(small) <= 260.0 < total(plan)
    assert small.modes == plan.modes and small.sets == plan.sets
    assert fitted(plan, 1e9, total) == plan


def test_the_smallest_plan_when_nothing_fits() -> None:
    smallest = fitted(PRESETS["report"], 0.1, total)
    assert (smallest.prompts, smallest.repeats) == (1, 1)


def test_prompts_leave_room_for_answers() -> None:
    assert fitting(Plan(contexts=(256, 900, 1000), new_tokens=100), 1024) == (256, 900)


@pytest.mark.parametrize("wrong", [{"modes": ("sideways",)}, {"sets": ("gsm9k",)}, {"prompts": 0}, {"repeats": 0}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=r"sideways|gsm9k|prompts|repeats"):
        Plan(**wrong)  # type: ignore[arg-type]
