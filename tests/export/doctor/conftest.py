from dataclasses import dataclass

import pytest
from transformers import PreTrainedTokenizerBase

from dflash_export.checkpoint import TargetModel, load_target, load_tokenizer
from dflash_export.doctor.configs import as_prompt
from dflash_export.doctor.material import Answer, write_answers
from dflash_export.drafter import Drafter
from dflash_export.drafter import load as load_drafter
from dflash_export.drafter_config import DrafterConfig
from tests.models.tiny_pair import DRAFTER, TARGET, held_back_questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """The tiny pair, and answers of its target."""

    target: TargetModel
    tokenizer: PreTrainedTokenizerBase
    drafter: Drafter
    answers: list[Answer]


@pytest.fixture(scope="session")
def healthy() -> Healthy:
    target, tokenizer = load_target(TARGET), load_tokenizer(TARGET)
    prompts = [as_prompt(tokenizer, question) for question in held_back_questions()[:6]]
    return Healthy(
        target=target,
        tokenizer=tokenizer,
        drafter=load_drafter(DRAFTER, DrafterConfig.from_folder(DRAFTER)),
        answers=write_answers(target, prompts, 64),
    )
