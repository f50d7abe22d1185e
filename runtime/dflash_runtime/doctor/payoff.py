"""Whether drafting pays on this engine at all: what a block costs, against what it gains."""

from dflash_engines.finding import Finding, Verdict
from dflash_runtime.bench.tally import Tally
from dflash_runtime.cost_table import CostTable, measure
from dflash_runtime.doctor.patient import Patient

_WORTH_IT = 1.05


def examine_payoff(patient: Patient) -> list[Finding]:
    """Expected speed over plain decoding by block size, from measured costs and the acceptance just seen."""
    patient.decoder.forget()
    costs = measure(patient.decoder.engine)
    found = patient.acceptance([patient.prompt(question) for question in patient.questions])
    return [judge_payoff(expected_ratios(costs, found))]


def expected_ratios(costs: CostTable, found: Tally, length: float = 256.0) -> dict[int, float]:
    """Tokens over seconds for each block size above 1, over those of plain decoding."""
    seconds = costs.at(slots=1, length=length).total(1)
    kept = found.by_position
    return {
        size: (1 + sum(kept[: size - 1])) * float(seconds[0] / cost)
        for size, cost in zip(costs.block_sizes, seconds, strict=True)
        if size > 1
    }


def judge_payoff(ratios: dict[int, float]) -> Finding:
    """A warning where no size gains anything."""
    best = max(ratios, key=ratios.__getitem__)
    table = ", ".join(f"{size}: {ratio:.2f}x" for size, ratio in ratios.items())
    pays = ratios[best] >= _WORTH_IT
    return Finding(
        check="does drafting pay",
        verdict=Verdict.OK if pays else Verdict.WARNING,
        found=f"expected speed over plain decoding by block size: {table}; best is {best}",
        fix=""
        if pays
        else "on this machine and these prompts decode plainly (--block-size 1), or get a better drafter",
        curves={"speed over plain": [(float(size), ratio) for size, ratio in ratios.items()]},
    )
