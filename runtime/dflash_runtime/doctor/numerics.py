"""The programs as they run here: golden cases, drift and taps against PyTorch, overflow."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dflash_engines import golden
from dflash_engines.backend import Programs
from dflash_engines.errors import EngineError
from dflash_engines.finding import Finding, fault, ok, skipped, warning
from dflash_engines.golden import Call, Runner
from dflash_engines.host_engine import declared_programs
from dflash_runtime.doctor.patient import Patient

_LONGEST = 192  # tokens of a compared prompt
_EXACT, _ROUGH = "fp32", ("int8", "int4")
Arrays = dict[str, NDArray[np.float32]]


def examine_golden(patient: Patient) -> list[Finding]:
    """The bundle's own known results, on this machine."""
    if patient.programs is None:
        return [ok("golden cases", "checked when the engine was loaded")]
    if not patient.bundle.has(golden.FILE):
        return [warning("golden cases", "the bundle carries none", "export it again")]
    manifest, cases = patient.bundle.manifest, golden.Golden.load(patient.bundle.file(golden.FILE))
    runner = Runner(patient.programs, declared_programs(manifest), manifest.limits)
    if strange := {call.program for call in cases.calls} - set(runner.arena.programs):
        return [warning("golden cases", f"they call {min(strange)!r}, gone in this release", "export it again")]
    try:
        off = golden.check(cases, runner)
    except EngineError as e:
        return [fault("golden cases", str(e), "this engine or its version computes something else: try another one")]
    return [ok("golden cases", f"known results are met, logits within {off:.1e}")]


def examine_drift(patient: Patient) -> list[Finding]:
    """The target's logits and the drafter's context rows, compiled, against PyTorch in fp32."""
    checks = ("drift of the target", "taps and KV injection")
    if patient.oracle is None or patient.programs is None:
        return [skipped(check, patient.why_no_oracle or "needs programs over host memory") for check in checks]
    tokens = patient.decoder.encoder.encode(patient.prompt(patient.questions[0]))[:_LONGEST]
    found, wanted = (_prefilled(patient, programs, tokens) for programs in (patient.programs, patient.oracle))
    return [_drift(patient, found, wanted), _injection(patient, found, wanted), _overflow(found)]


def _prefilled(patient: Patient, programs: Programs, tokens: Sequence[int]) -> Arrays:
    """Logits [S,V] of a prompt, and every cache's rows."""
    manifest, rows = patient.bundle.manifest, len(tokens)
    limits = replace(manifest.limits, max_len=max(rows, 8), prefill_chunk=max(rows, 2))
    runner = Runner(programs, declared_programs(manifest), limits)
    inputs = {
        "tokens": np.array([tokens]),
        "start": np.array([0]),
        "length": np.array([rows]),
        "rows": np.arange(rows)[None],
    }
    found: Arrays = {"logits": runner.run(Call(program="target", first_slot=0, inputs=inputs))["logits"][0]}
    caches = (b.name for b in runner.arena.programs["target"].inputs if "_key_" in b.name or "_value_" in b.name)
    return found | {name: runner.arena.buffers[name].astype(np.float32) for name in caches}


def _drift(patient: Patient, found: Arrays, wanted: Arrays) -> Finding:
    precision = patient.bundle.manifest.precision
    own, theirs = (_log_softmax(arrays["logits"]) for arrays in (found, wanted))
    divergence = float(np.mean(np.sum(np.exp(theirs) * (theirs - own), -1)))
    agree = float(np.mean(own.argmax(-1) == theirs.argmax(-1)))
    least = 0.99 if precision == _EXACT else 0.8 if precision in _ROUGH else 0.9
    shown = f"{precision}: KL {divergence:.1e} from fp32 in PyTorch, best token agrees in {agree:.1%} of rows"
    if not agree >= least:
        return fault("drift of the target", shown, "export in a wider precision; if that is as bad, report the model")
    return ok("drift of the target", shown)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    rows: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return rows


def _injection(patient: Patient, found: Arrays, wanted: Arrays) -> Finding:
    """The drafter's context rows are made of the taps alone: wrong taps show here, whatever the logits are."""
    precision = patient.bundle.manifest.precision
    off = {name: _distance(found[name], wanted[name]) for name in wanted if name.startswith("draft_")}
    worst = max(off, key=off.__getitem__)
    shown = f"the drafter's context rows are off from PyTorch's by at most {off[worst]:.1e} of their size ({worst})"
    if not off[worst] <= (1e-2 if precision == _EXACT else 0.35):
        return fault(
            "taps and KV injection",
            shown,
            "the bundle taps other layers, or holds another drafter, than its checkpoints say: export the pair again",
        )
    return ok("taps and KV injection", shown)


def _distance(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-12))


def _overflow(found: Arrays) -> Finding:
    if not all(np.isfinite(values).all() for values in found.values()):
        return fault("overflow", "NaN or infinity after a real prompt", "export in a wider precision: bf16 or fp32")
    largest = max(float(np.abs(values).max()) for name, values in found.items() if name != "logits")
    return ok("overflow", f"all numbers are finite, cached ones up to {largest:.3g}")
