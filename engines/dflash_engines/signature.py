"""What acceptance by position says about a drafter's health.

Healthy drafters of large models keep their first token in 0.85-0.88 of blocks on maths (about 0.72 on chat), and each
later one in 0.78-0.81 of the blocks that kept all before it. Other shapes each mean something.
"""

from collections.abc import Sequence

from dflash_engines.finding import Finding, fault, ok, skipped, warning

FEWEST_PASSES = 20
_NOTHING, _WEAK, _CERTAIN_PASSES = 0.05, 0.6, 50
_STEEP = 0.55  # of the first position's share, for the mean of the two behind it


def judge(conditional: Sequence[float], passes: int) -> Finding:
    """`conditional` [positions]: the share kept where all before were. Judges shape, not luck: needs some passes."""
    check, shown = "acceptance", " ".join(f"{share:.2f}" for share in conditional)
    found = f"kept where all before were: {shown} ({passes} blocks)"
    if passes < FEWEST_PASSES:
        return skipped(check, f"only {passes} blocks; ask more or longer")
    first, later = conditional[0], conditional[1:3]
    if first < _NOTHING:
        return fault(
            check,
            found,
            "nothing is kept: wrong target_layer_ids or mask_token_id, another target's drafter, "
            "weights read without their scales, or overflow; the other lines tell which",
        )
    if min(conditional) == 1.0 and passes >= _CERTAIN_PASSES:
        return warning(
            check,
            found,
            "everything is kept: trivially repetitive answers, or a drafter that sees what it "
            "should guess; ask other prompts",
        )
    if later and sum(later) / len(later) < _STEEP * first:
        return warning(
            check,
            found,
            "a steep fall behind the first position: rope_theta, a window or the causality of the "
            "block, a block larger than the trained one, or a young drafter",
        )
    if first < _WEAK:
        return warning(
            check,
            found,
            "healthy drafters start at 0.7 (chat) to 0.88 (maths): other prompts than the drafter was "
            "trained on, another chat template or thinking mode, or a young drafter",
        )
    return ok(check, found)
