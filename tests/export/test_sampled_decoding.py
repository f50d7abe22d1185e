"""Sampled answers of an exported pair: the same with and without the drafter, in any company, and of the right law."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines import golden
from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.errors import RequestError
from dflash_engines.host_engine import HostEngine, declared_programs
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import MAX_SEED, SamplingParameters
from dflash_export import parity
from dflash_runtime.decoder import Decoder
from dflash_runtime.loop import DecodeLoop, Progress
from dflash_runtime.request import Request
from tests.export.conftest import ExportPair
from tests.export.pairs import FAMILY_CASES

Engine = Callable[[int], HostEngine]
SAMPLING = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.0, 0.2, 0.8, 1.0, 1.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.5, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, MAX_SEED),
)
REQUEST = st.builds(
    lambda tokens, new, size, sampling, stops: Request(
        tokens=tuple(tokens), max_new_tokens=new, stop_token_ids=stops, block_size=size, sampling=sampling
    ),
    st.lists(st.integers(0, 90), min_size=1, max_size=40),
    st.integers(1, 24),
    st.integers(1, 8),
    SAMPLING,
    st.frozensets(st.integers(0, 90), max_size=6),
)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def bundle(export_pair: ExportPair) -> Bundle:
    return export_pair(FAMILY_CASES[0])[2]


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    """An engine of three slots for a size of prefill chunks."""
    programs, made = OnnxRuntimePrograms(bundle, Options()), dict[int, HostEngine]()

    def get(chunk: int) -> HostEngine:
        limits = replace(bundle.manifest.limits, max_batch=3, prefill_chunk=chunk)
        return made.setdefault(chunk, HostEngine(bundle, programs, limits))

    return get


def alone(engine: HostEngine, request: Request) -> list[int]:
    return [token for event in DecodeLoop(engine).run(0, request) for token in event.token_ids]


@given(request=REQUEST, size=st.integers(2, 8), chunk=st.sampled_from([2, 3, 7, 16]))
@MANY
def test_the_drafter_changes_no_sampled_token(engine: Engine, request: Request, size: int, chunk: int) -> None:
    plain = alone(engine(16), replace(request, block_size=1))
    assert alone(engine(chunk), replace(request, block_size=size)) == plain


@given(requests=st.lists(REQUEST, min_size=2, max_size=3), late=st.integers(0, 4))
@MANY
def test_neighbours_change_no_sampled_token(engine: Engine, requests: list[Request], late: int) -> None:
    """Greedy and sampled slots share a batch, and its accept program is the one that the most demanding needs."""
    loop, found = DecodeLoop(engine(7)), dict[int, list[int]]()
    for slot, request in enumerate(requests[:-1]):
        loop.admit(slot, request)
    step, last = 0, len(requests) - 1
    while step <= late or any(slot.request is not None for slot in loop.slots):
        if step == late:
            loop.admit(last, requests[last])
        for event in loop.step():
            assert isinstance(event, Progress)
            found.setdefault(event.slot, []).extend(event.token_ids)
        step += 1
    assert [found[slot] for slot in range(len(requests))] == [alone(engine(16), request) for request in requests]


def test_drafts_are_accepted_when_sampling(engine: Engine) -> None:
    """One token left by top_k makes the greedy answer, and the same steps."""
    request = Request(tokens=(5, 6, 7), max_new_tokens=60, stop_token_ids=frozenset(), block_size=8)
    sharp = replace(request, sampling=SamplingParameters(temperature=1.0, top_k=1))
    steps = [list(DecodeLoop(engine(16)).run(0, asked)) for asked in (request, sharp)]
    assert [(e.token_ids, e.accepted) for e in steps[0]] == [(e.token_ids, e.accepted) for e in steps[1]]


def test_a_seed_is_drawn_reported_and_repeats_the_answer(bundle: Bundle) -> None:
    decoder = Decoder.load(bundle.path)
    asked: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.2, "stop_token_ids": ()}
    first, second = (decoder.complete("for i in", **asked) for _ in range(2))
    assert first.token_ids != second.token_ids and first.seed != second.seed
    assert decoder.complete("for i in", **asked, seed=first.seed, block_size=3).token_ids == first.token_ids
    zero = [decoder.complete("for i in", **asked, seed=0) for _ in range(2)]
    assert zero[0].token_ids == zero[1].token_ids and zero[0].seed == 0
    assert decoder.complete("for i in", max_new_tokens=2).seed is None


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"temperature": value}, "temperature must be") for value in (-0.1, float("nan"), float("inf"))),
    *(({"top_k": value}, "top_k must be") for value in (-1, 2.5)),
    *(({"top_p": value}, "top_p must be") for value in (0.0, -1.0, 1.5, float("nan"))),
    *(({"min_p": value}, "min_p must be") for value in (-0.1, 1.1, float("nan"))),
    *(({"seed": value}, "seed must be") for value in (-1, MAX_SEED + 1, 0.5)),
]


@pytest.mark.parametrize(("rules", "message"), WRONG)
def test_a_wrong_parameter_is_refused_by_name(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParameters(**rules)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.7)])
def test_first_tokens_follow_the_softmax_of_the_targets_logits(
    bundle: Bundle, engine: Engine, top_k: int, top_p: float
) -> None:
    prompt, count = [5, 6, 7, 8], 1500
    runner = golden.Runner(OnnxRuntimePrograms(bundle, Options()), declared_programs(bundle.manifest),
                           bundle.manifest.limits)  # fmt: skip
    logits = runner.run(parity.target_calls(prompt, 16)[0])["logits"][0, -1].astype(np.float64)
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    order = np.argsort(-probability)
    before = np.cumsum(probability[order]) - probability[order]
    kept = order[(before < top_p) & (np.arange(len(order)) < (top_k or len(order)))]
    wanted = np.zeros_like(probability)
    wanted[kept] = probability[kept] / probability[kept].sum()
    rules = SamplingParameters(temperature=1.0, top_k=top_k, top_p=top_p)
    tokens = []
    for seed in range(count):
        found = engine(16).finish_prefill(0, prompt, 0, replace(rules, seed=seed))
        tokens.append(int(found.sampled[0, 0]))
    assert abs(_deviation(np.array(tokens), wanted)) < 4.5
    swapped = np.roll(wanted, 1)  # the planted fault: probabilities of the neighbours
    assert _deviation(np.array(tokens), swapped) > 10


def _deviation(tokens: Any, probability: Any) -> float:
    """Chi-square over ten classes of about equal probability, in standard deviations."""
    classes = np.minimum((np.cumsum(probability) * 10).astype(int), 9)
    wanted = np.bincount(classes, weights=probability, minlength=10) * len(tokens)
    seen = np.bincount(classes[tokens], minlength=10)
    used = wanted > 0
    outside = seen[~used].sum()
    free = max(used.sum() - 1, 1)
    value = ((seen[used] - wanted[used]) ** 2 / wanted[used]).sum() + outside * 1e6
    return float((value - free) / np.sqrt(2 * free))
