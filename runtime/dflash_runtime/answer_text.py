"""The text of one answer, pass by pass; it finds the stop strings, which the loop over token ids can't see."""

from dataclasses import replace

from dflash_runtime.completion import Step
from dflash_runtime.detokenize import Detokenizer
from dflash_runtime.loop import Progress
from dflash_runtime.request import Request
from dflash_runtime.stop_strings import StopScanner


class AnswerText:
    """Turns each `Progress` of one request into a `Step`, which may end the answer before the loop does."""

    def __init__(self, request: Request, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(request.stop_strings)
        self._stop_token_ids = request.stop_token_ids

    def step(self, progress: Progress) -> Step:
        """Token by token, so that the answer ends with the one that completes a stop string, in any block."""
        stop_token = progress.finish_reason == "stop" and progress.token_ids[-1] in self._stop_token_ids
        shown = progress.token_ids[:-1] if stop_token else progress.token_ids
        text = accepted_text = ""
        for count, token in enumerate(shown, start=1):
            text += self._scanner.push(self._detokenizer.push((token,)))
            if count <= progress.accepted:
                accepted_text = text
            if self._scanner.matched:
                return _step(_cut(progress, count), text, accepted_text)
        if progress.finish_reason is None:
            return _step(progress, text, accepted_text)
        text += self._scanner.push(self._detokenizer.flush())
        if self._scanner.matched:  # in what the detokeniser held back
            progress = _cut(progress, len(progress.token_ids))
        return _step(progress, text + self._scanner.flush(), accepted_text)


def _cut(progress: Progress, count: int) -> Progress:
    """As if the pass had ended the answer with its first `count` tokens."""
    return replace(
        progress,
        token_ids=progress.token_ids[:count],
        accepted=min(progress.accepted, count),
        finish_reason="stop",
        logprobs=progress.logprobs[:count],
    )


def _step(progress: Progress, text: str, accepted_text: str) -> Step:
    return Step(
        token_ids=progress.token_ids,
        text=text,
        accepted=progress.accepted,
        accepted_text=accepted_text,
        acceptance_length=progress.acceptance_length,
        finish_reason=progress.finish_reason,
        block_size=progress.block_size,
        logprobs=progress.logprobs,
    )
