"""The text side of one request: what the loop found, as steps, and in the end as a completion."""

from dflash_runtime.answer_text import AnswerText
from dflash_runtime.completion import Completion, Step, TimeSplit
from dflash_runtime.detokenize import Detokenizer
from dflash_runtime.loop import Progress
from dflash_runtime.request import Request


class Answer:
    """One request's answer as it grows; fed by whoever drives the loop."""

    def __init__(self, request: Request, detokenizer: Detokenizer) -> None:
        self.request = request
        self.steps: list[Step] = []
        self._text = AnswerText(request, detokenizer)

    def push(self, progress: Progress) -> Step:
        """The step that `progress` makes.

        When it has a finish reason and `progress` has none, the text ended the answer: release the slot.
        """
        self.steps.append(self._text.step(progress))
        return self.steps[-1]

    def completion(self, *, reused_tokens: int, seconds: TimeSplit) -> Completion:
        """The whole answer, once a step has its finish reason."""
        steps, reason = self.steps, self.steps[-1].finish_reason
        assert reason is not None
        return Completion(
            text="".join(step.text for step in steps),
            token_ids=tuple(token for step in steps for token in step.token_ids),
            acceptance_lengths=tuple(s.acceptance_length for s in steps if s.acceptance_length is not None),
            block_sizes=tuple(s.block_size for s in steps if s.block_size is not None),
            finish_reason=reason,
            prompt_tokens=len(self.request.tokens),
            reused_tokens=reused_tokens,
            seconds=seconds,
            logprobs=tuple(found for step in steps for found in step.logprobs),
            seed=None if self.request.sampling.greedy else self.request.sampling.seed,
        )
