from dflash_runtime import Decoder, Step
from dflash_runtime.comparison import compare, warm_up
from tests.engines.scripted_bundle import MAX_LEN
from tests.engines.scripted_pair import STOP_TOKEN_IDS, acceptance_lengths, plain_answer


def test_both_answers_start_from_an_empty_slot(decoder: Decoder) -> None:
    """A prefix left by the first run would make the second one look faster."""
    steps: list[Step] = []
    warm_up(decoder, [5, 6, 7])
    found = compare(decoder, decoder.request([5, 6, 7], 20, 3, None), steps.append)
    tokens, _ = plain_answer([5, 6, 7], 20, STOP_TOKEN_IDS, MAX_LEN)
    assert found.identical
    assert list(found.drafted.token_ids) == list(found.plain.token_ids) == tokens
    assert found.drafted.reused_tokens == found.plain.reused_tokens == 0
    assert list(found.drafted.acceptance_lengths) == acceptance_lengths([5, 6, 7], len(tokens), 3)
    assert set(found.plain.acceptance_lengths) == {1}
    assert found.plain.seconds.draft == 0
    assert found.speed_ratio == found.drafted.tokens_per_second / found.plain.tokens_per_second
    assert [token for step in steps for token in step.token_ids] == tokens
