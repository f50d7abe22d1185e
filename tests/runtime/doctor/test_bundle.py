"""Bundles that are spoilt, each in one way, and the line that names it; the one that is well has no such line."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dflash_engines.backend import Buffers, Programs, Run
from dflash_engines.finding import Finding, Verdict
from dflash_runtime.bench.tally import Tally
from dflash_runtime.cost_table import CostTable
from dflash_runtime.doctor.examination import CHECKS, examine_bundle
from dflash_runtime.doctor.patient import Patient
from dflash_runtime.doctor.payoff import expected_ratios, judge_payoff
from dflash_runtime.doctor.swaps import CopiedCaches
from tests.engines.scripted_bundle import write_manifest
from tests.models.tiny_pair import held_back_questions
from tests.runtime.doctor.conftest import patient_of

Spoil = Callable[[str, Buffers], None]  # the program's name, its outputs after a run


@dataclass(frozen=True)
class Spoilt:
    """Programs whose outputs are changed behind every run."""

    own: Programs
    spoil: Spoil

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        run = self.own.bind(program, inputs, outputs)

        def spoilt() -> None:
            run()
            self.spoil(program, outputs)

        return spoilt


def with_programs(patient: Patient, programs: Programs, **manifest: object) -> Patient:
    bundle = replace(patient.bundle, manifest=patient.bundle.manifest.model_copy(update=manifest))
    changed = replace(patient, bundle=bundle)
    return replace(changed, decoder=changed.decoder_of(programs))


def verdicts(findings: list[Finding]) -> dict[str, Verdict]:
    return {finding.check: finding.verdict for finding in findings}


def ill(findings: list[Finding]) -> list[str]:
    assert all(finding.fix for finding in findings if finding.verdict is Verdict.FAULT)
    return [finding.check for finding in findings if finding.verdict is Verdict.FAULT]


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "payoff"])
def test_a_healthy_bundle_is_not_called_ill(check: str, patient: Patient) -> None:
    assert ill(CHECKS[check](patient)) == []


def test_everything_is_looked_at(patient: Patient) -> None:
    looked = [*CHECKS["drift"](patient), *CHECKS["swaps"](patient)]
    assert {finding.verdict for finding in looked} == {Verdict.OK}


def worse_drafts(program: str, outputs: Buffers) -> None:
    """From the third drafted token on, tokens are off: as after coarse quantisation."""
    if program == "draft":
        outputs["block"][:, 2:] = 7


def test_a_worse_drafter_is_to_blame(patient: Patient) -> None:
    assert patient.programs is not None
    spoilt = with_programs(patient, Spoilt(patient.programs, worse_drafts))
    assert ill(CHECKS["swaps"](spoilt)) == ["the drafter's program"]
    quantised = with_programs(patient, Spoilt(patient.programs, worse_drafts), draft_precision="int8")
    (_, found) = CHECKS["swaps"](quantised)
    assert found.verdict is Verdict.WARNING and "--draft-precision" in found.fix


def worse_taps(program: str, outputs: Buffers) -> None:
    """The drafter's context is another one than the taps give; logits stay right."""
    if program == "target":
        for name, array in outputs.items():
            if "draft_" in name:
                array[...] = array[:, :, ::-1]


def test_wrong_taps_are_found_though_logits_are_right(patient: Patient) -> None:
    assert patient.programs is not None
    spoilt = with_programs(patient, Spoilt(patient.programs, worse_taps))
    assert ill(CHECKS["drift"](spoilt)) == ["taps and KV injection"]


def worse_logits(program: str, outputs: Buffers) -> None:
    if program == "target":
        outputs["logits"][...] = np.roll(outputs["logits"], 1, -1)


def test_a_target_that_computes_something_else_is_found(patient: Patient) -> None:
    assert patient.programs is not None
    spoilt = with_programs(patient, Spoilt(patient.programs, worse_logits))
    assert "drift of the target" in ill(CHECKS["drift"](spoilt))
    assert "golden cases" in ill(CHECKS["golden cases"](spoilt))


def overflowing(program: str, outputs: Buffers) -> None:
    if program == "target":
        for name, array in outputs.items():
            if "draft_" in name:
                array[...] = np.inf


def test_overflow_is_found(patient: Patient) -> None:
    assert patient.programs is not None
    spoilt = with_programs(patient, Spoilt(patient.programs, overflowing))
    assert "overflow" in ill(CHECKS["drift"](spoilt))


def nothing_right(program: str, outputs: Buffers) -> None:
    if program == "draft":
        outputs["block"][:, 1:] = 7


def test_nothing_kept_is_a_fault_of_acceptance(patient: Patient) -> None:
    assert patient.programs is not None
    spoilt = with_programs(patient, Spoilt(patient.programs, nothing_right))
    (found,) = CHECKS["acceptance"](spoilt)
    assert found.verdict is Verdict.FAULT and "nothing is kept" in found.fix


def test_copied_caches_are_caches_that_were_copied(patient: Patient) -> None:
    assert patient.programs is not None
    own, copied = np.zeros(3), np.zeros(3)

    class AddsOne:
        def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
            def run() -> None:
                outputs["new"][...] = inputs["old"] + 1

            return run

    for array, programs in ((own, AddsOne()), (copied, CopiedCaches(own=AddsOne()))):
        programs.bind("any", {"old": array}, {"new": array})()
    assert own.tolist() == copied.tolist() == [1.0, 1.0, 1.0]


@dataclass(frozen=True)
class BrokenAliasing:
    """Writes in place go wrong; where input and output are apart, all is well."""

    own: Programs

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        run = self.own.bind(program, inputs, outputs)
        in_place = any(np.shares_memory(i, o) for i in inputs.values() for o in outputs.values())
        if program != "target" or not in_place:
            return run

        def broken() -> None:
            run()
            outputs["logits"][...] = np.roll(outputs["logits"], 3, -1)

        return broken


def test_broken_updates_in_place_are_found(patient: Patient) -> None:
    assert patient.programs is not None
    spoilt = with_programs(patient, BrokenAliasing(patient.programs))
    assert ill(CHECKS["updates"](spoilt)) == ["updates in place"]


def reseal(folder: Path, **changed: object) -> None:
    fields = json.loads((folder / "bundle.json").read_text())
    write_manifest(folder, {k: v for k, v in fields.items() if k != "files"} | changed)


def test_a_missing_chat_template_is_told(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (folder / "chat_template.jinja").unlink()
    reseal(folder)
    findings = CHECKS["manifest"](patient_of(folder, held_back_questions()[:1], 8))
    assert verdicts(findings)["chat template"] is Verdict.WARNING


def test_a_mask_that_stops_and_one_that_answers_use(patient: Patient, tiny_bundle: Path) -> None:
    for mask, verdict in ((2, Verdict.FAULT), (700, Verdict.WARNING)):
        bundle = replace(patient.bundle, manifest=patient.bundle.manifest.model_copy(update={"mask_token_id": mask}))
        findings = CHECKS["manifest"](replace(patient, bundle=bundle))
        assert verdicts(findings)["mask_token_id"] is verdict


def test_a_damaged_bundle_is_a_finding(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (folder / "weights.bin").write_bytes(b"short")
    found = examine_bundle(folder, ["Hi"], 8, backend="onnxruntime", threads=1, told=lambda _: None)
    assert found.verdict is Verdict.FAULT and "weights.bin" in found.findings[0].found


def test_a_drafter_that_costs_more_than_it_gains() -> None:
    costs = CostTable(slots=(1,), lengths=(64,), block_sizes=(1, 2, 4), draft=(((0.0, 1.0, 1.0),),),
                      target=(((9.0, 10.0, 13.0),),), accept=(((1.0, 1.0, 1.0),),))  # fmt: skip
    good, poor = Tally(passes=Counter({(4, 4): 9, (4, 1): 1})), Tally(passes=Counter({(4, 1): 10}))
    assert expected_ratios(costs, poor) == {2: pytest.approx(10 / 12), 4: pytest.approx(10 / 15)}
    assert judge_payoff(expected_ratios(costs, poor)).verdict is Verdict.WARNING
    assert judge_payoff(expected_ratios(costs, good)).verdict is Verdict.OK
