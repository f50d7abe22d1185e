"""How large the numbers get on their way to the drafter: whether a half-precision format can hold them."""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from dflash_engines.finding import Finding, fault, ok, warning
from dflash_export.doctor.material import Answer
from dflash_export.drafter import Drafter

FP16_LARGEST = 65504.0
_NEAR = 0.25  # of it


def largest_numbers(drafter: Drafter, answers: Sequence[Answer]) -> list[Finding]:
    """Of the residual stream, the taps, and what `fc` makes of them, in fp32."""
    residual = max(float(h.abs().max()) for answer in answers for h in answer.hidden)
    fused = max(_largest_sum(drafter, answer) for answer in answers)
    return [_judged("residual stream", residual), _judged("fc over the taps", fused)]


def _largest_sum(drafter: Drafter, answer: Answer) -> float:
    """What `fc` may reach before anything cancels: half-precision sums can pass through it."""
    taps = torch.cat([answer.hidden[i + 1] for i in drafter.config.target_layer_ids], -1)
    return float(F.linear(taps.abs(), drafter.fc.weight.abs()).max())


def _judged(what: str, largest: float) -> Finding:
    check, found = f"numbers: {what}", f"up to {largest:.3g}; fp16 holds {FP16_LARGEST:.3g}"
    if largest != largest or largest == float("inf"):
        return fault(check, "NaN or infinity in fp32", "the checkpoint itself is damaged; fetch it again")
    if largest > _NEAR * FP16_LARGEST:
        return warning(
            check,
            found,
            "in fp16 this may overflow and nothing would be accepted: take bf16 or fp32, or "
            "a precision that scales the taps",
        )
    return ok(check, found)
