"""A speed is told only of answers that are the baseline's."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_runtime.bench.offline import answer_all, by_set
from dflash_runtime.bench.system import DRAFTED, PLAIN, Run

PROMPTS = [("maths", [1]), ("maths", [2]), ("code", [3])]


@dataclass(frozen=True)
class Scripted:
    """Answers with the prompt's last token, or wrongly where told to; twice as fast as `seconds` says."""

    name: str
    seconds: float
    wrong_on: tuple[int, ...] = ()

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> Run:
        token = prompt[-1] + (100 if prompt[-1] in self.wrong_on else 0)
        return Run(token_ids=(token,) * max_new_tokens, seconds=self.seconds)


def measured(*systems: Scripted) -> list[tuple[str, dict[str, tuple[int, float | None]]]]:
    answered = answer_all(systems, PROMPTS, new_tokens=8, repeats=2, told=lambda _: None)
    return [
        (found.set_name, {s.system: (s.equal, s.over_plain.median if s.over_plain else None) for s in found.systems})
        for found in by_set(answered)
    ]


def test_ratios_are_of_the_same_prompts() -> None:
    maths, code = measured(Scripted(PLAIN, 2.0), Scripted("peer", 4.0))
    assert maths == ("maths", {PLAIN: (2, 1.0), "peer": (2, 0.5)})
    assert code == ("code", {PLAIN: (1, 1.0), "peer": (1, 0.5)})


def test_a_peer_counts_only_where_it_answers_the_same() -> None:
    maths, code = measured(Scripted(PLAIN, 2.0), Scripted("peer", 1.0, wrong_on=(1, 3)))
    assert maths[1]["peer"] == (1, 2.0)
    assert code[1]["peer"] == (0, None)


def test_one_changed_answer_and_the_drafter_has_no_speed() -> None:
    answered = answer_all(
        [Scripted(PLAIN, 2.0), Scripted(DRAFTED, 1.0, wrong_on=(2,))],
        PROMPTS, new_tokens=8, repeats=1, told=lambda _: None,
    )  # fmt: skip
    maths, code = by_set(answered)
    assert not maths.lossless and maths.systems[1].over_plain is None and maths.systems[1].tokens_per_second is None
    assert code.lossless
