"""The whole battery, in order; each check may say that it could not look."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError, DflashError, RequestError
from dflash_engines.finding import Finding, Verdict, fault
from dflash_runtime.bench.about import About, about
from dflash_runtime.bench.system import load_decoder
from dflash_runtime.doctor.acceptance import (
    examine_acceptance,
    examine_context,
    examine_languages,
    examine_template,
)
from dflash_runtime.doctor.manifest import examine_manifest
from dflash_runtime.doctor.numerics import examine_drift, examine_golden
from dflash_runtime.doctor.patient import ENTRY_POINT_GROUP, Check, Patient, Told, load_oracle
from dflash_runtime.doctor.payoff import examine_payoff
from dflash_runtime.doctor.swaps import examine_losslessness, examine_swaps, examine_updates

CHECKS: dict[str, Check] = {
    "manifest": examine_manifest,
    "golden cases": examine_golden,
    "drift": examine_drift,
    "lossless": examine_losslessness,
    "acceptance": examine_acceptance,
    "prompt form": examine_template,
    "languages": examine_languages,
    "context": examine_context,
    "swaps": examine_swaps,
    "updates": examine_updates,
    "payoff": examine_payoff,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All findings, and where and how they were made."""

    about: About
    subject: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        verdicts = {finding.verdict for finding in self.findings}
        return next((v for v in (Verdict.FAULT, Verdict.WARNING) if v in verdicts), Verdict.OK)


def as_json(examination: Examination) -> dict[str, Any]:
    """Plain values for json.dump."""
    return asdict(examination) | {"verdict": examination.verdict}


def examine_bundle(
    path: Path, questions: Sequence[str], new_tokens: int, *, backend: str, threads: int | None, told: Told
) -> Examination:
    """A bundle, and the checkpoints it was made from where they are at hand.

    Raises BundleError when there is no bundle at all; a damaged one is a finding, and so is whatever fails later.
    """
    here = about()
    if not Path(path).is_dir():
        raise BundleError(f"{path}: no such folder; give the folder that dflash-export wrote")
    try:
        patient = _patient(path, questions, new_tokens, backend, threads)
    except DflashError as e:
        found = [fault("loading", str(e), "nothing else can be looked at before this is put right")]
        return Examination(about=here, subject=str(path), findings=tuple(found))
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        told(name)
        findings += _guarded(name, check, patient)
    return Examination(about=here, subject=str(path), findings=tuple(findings))


def _patient(path: Path, questions: Sequence[str], new_tokens: int, backend: str, threads: int | None) -> Patient:
    bundle = Bundle.open(path)
    oracle, why = load_oracle(bundle)
    return Patient(
        bundle=bundle,
        decoder=load_decoder(bundle, backend, threads),
        questions=tuple(questions),
        new_tokens=new_tokens,
        oracle=oracle,
        why_no_oracle=why,
    )


def _guarded(name: str, check: Check, patient: Patient) -> list[Finding]:
    """An engine that fails in one check is a finding of that check; the others go on."""
    try:
        return check(patient)
    except DflashError as e:
        return [fault(name, str(e), "see the message; other lines may tell more")]


def examine_checkpoints(
    target: str, drafter: str, questions: Sequence[str], new_tokens: int, told: Told
) -> Examination:
    """A target and a drafter. Raises RequestError without PyTorch, CheckpointError where nothing is found."""
    here = about()
    (point,) = entry_points(group=ENTRY_POINT_GROUP, name="checkpoints")
    try:
        examine: Callable[[str, str, Sequence[str], int, Told], list[Finding]] = point.load()
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("dflash_"):
            raise
        raise RequestError(f"examining checkpoints needs {e.name!r}: pip install 'dflash-trt[export]'") from e
    findings = examine(target, drafter, questions, new_tokens, told)
    return Examination(about=here, subject=f"{target} with {drafter}", findings=tuple(findings))
