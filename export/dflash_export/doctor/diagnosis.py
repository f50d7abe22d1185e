"""From simulated acceptance to a diagnosis: is it healthy, and if not, which one setting would make it so?"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dflash_engines.finding import Finding, fault, ok, skipped
from dflash_engines.signature import judge
from dflash_export.checkpoint import TargetModel
from dflash_export.doctor.material import Answer
from dflash_export.doctor.settings import alternatives
from dflash_export.doctor.simulation import SCREENING, Setting, kept_tokens
from dflash_export.drafter import Drafter

_FEWEST_ANCHORS = 20
_BETTER = 1.06  # times the acceptance length, for another setting to be named
_STANDARD_ERRORS = 3.5  # that the difference must be away from chance; a few dozen settings are tried
_NOT_WORSE = 0.97  # times the acceptance length on a few anchors, for a setting to be judged on all of them
_UNKNOWN = 0.15  # of first positions kept: less looks like another target's drafter


def diagnose(
    target: TargetModel, drafter: Drafter, answers: Sequence[Answer], tokenizer: PreTrainedTokenizerBase
) -> list[Finding]:
    """The signature of acceptance under the config as it is, and the setting that would be better, if one is."""
    as_it_is = Setting(name="", config=drafter.config)
    base = kept_tokens(target, drafter, answers, as_it_is)
    if len(base) < _FEWEST_ANCHORS:
        return [skipped("simulated acceptance", f"only {len(base)} tokens to draft behind; ask more or longer")]
    signature = replace(judge(conditional(base, drafter.config.block_size), len(base)), check="simulated acceptance")
    settings = alternatives(drafter.config, target, tokenizer)
    least = _NOT_WORSE * _length(kept_tokens(target, drafter, answers, as_it_is, SCREENING))
    promising = [s for s in settings if _length(kept_tokens(target, drafter, answers, s, SCREENING)) >= least]
    judged = [(kept_tokens(target, drafter, answers, setting), setting) for setting in promising]
    return [signature, _verdict(base, judged, len(settings))]


def conditional(kept: Tensor, block_size: int) -> list[float]:
    """For each position, the share kept where all before were; ends where none was."""
    reached = [int((kept >= position).sum()) for position in range(block_size)]
    return [after / before for before, after in pairwise(reached) if before]


def _verdict(base: Tensor, others: Sequence[tuple[Tensor, Setting]], tried: int) -> Finding:
    better = [(kept, setting) for kept, setting in others if _clearly_better(kept, base)]
    if better:
        kept, setting = max(better, key=lambda entry: float(entry[0].float().mean()))
        return fault(
            "settings",
            f"{setting.name}: acceptance length {_length(kept):.2f} instead of {_length(base):.2f} with "
            "the other value",
            setting.fix,
        )
    if float((base >= 1).float().mean()) < _UNKNOWN:
        return fault(
            "settings",
            "none of the usual other settings drafts better, and the first token is kept in "
            f"{float((base >= 1).float().mean()):.0%} of blocks: these weights don't know this target",
            "take the drafter that was trained for this very target; a fine-tune or another size is another target",
        )
    return ok("settings", f"none of {tried} other settings drafts better than the config's")


def _length(kept: Tensor) -> float:
    return 1 + float(kept.float().mean())


def _clearly_better(kept: Tensor, base: Tensor) -> bool:
    """On the same anchors: by enough to matter, and by more than chance."""
    gain = (kept - base).float()
    error = float(gain.std()) / len(gain) ** 0.5
    return _length(kept) > _BETTER * _length(base) and float(gain.mean()) > _STANDARD_ERRORS * error
