"""A target and a drafter as checkpoints: do they fit, are the taps right, and does any other setting draft better?"""

from collections.abc import Callable, Sequence

import torch

from dflash_engines.errors import CheckpointError
from dflash_engines.finding import Finding, Verdict, fault, ok
from dflash_export import pair
from dflash_export.checkpoint import Checkpoint, load_target, load_tokenizer, locate
from dflash_export.doctor import configs, taps
from dflash_export.doctor.diagnosis import diagnose
from dflash_export.doctor.material import write_answers
from dflash_export.doctor.overflow import largest_numbers
from dflash_export.drafter import load as load_drafter
from dflash_export.drafter_config import DrafterConfig

Told = Callable[[str], object]


def examine(target: str, drafter: str, questions: Sequence[str], new_tokens: int, told: Told) -> list[Finding]:
    """Every line about a pair of checkpoints; the entry point `checkpoints`.

    `questions` are asked through the target's chat template, if it has one. Raises CheckpointError when a folder
    can't be found; everything behind that is a finding.
    """
    both = locate(target), locate(drafter)
    try:
        return _examine(*both, questions, new_tokens, told)
    except CheckpointError as e:
        return [fault("checkpoints", str(e), "a pair like this is refused by dflash-export, for this reason")]


def _examine(
    target: Checkpoint, drafter: Checkpoint, questions: Sequence[str], new_tokens: int, told: Told
) -> list[Finding]:
    config = DrafterConfig.from_folder(drafter.folder)
    told("loading the target")
    loaded, tokenizer = load_target(target.folder), load_tokenizer(target.folder)
    found = configs.compare(loaded, config, tokenizer)
    if any(finding.verdict is Verdict.FAULT for finding in found):
        return found  # drafts of such a pair mean nothing
    pair.check_pair(loaded, config)
    model = load_drafter(drafter.folder, config)
    found.append(ok("drafter weights", f"{sum(p.numel() for p in model.parameters()):,} parameters, none missing"))
    told("writing answers with transformers")
    prompts = [configs.as_prompt(tokenizer, question) for question in questions]
    with torch.no_grad():
        answers = write_answers(loaded, prompts, new_tokens)
        found += largest_numbers(model, answers)
        told("drafting under other settings")
        found += diagnose(loaded, model, answers, tokenizer)
        told("comparing the taps with transformers")
        return [*found, *taps.compare(loaded, model, answers[0])]  # last: it opens the target's seams
