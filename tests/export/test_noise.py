"""The noise as a generator: exact, uniform, independent in every argument, strictly inside (0, 1)."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dflash_engines.sampling import MAX_SEED
from dflash_export.programs import noise

BINS = 64


def drawn(seeds: list[int], positions: list[int], ids: int) -> NDArray[np.float64]:
    """Uniform numbers [seeds, positions, ids]."""
    at = torch.tensor([positions] * len(seeds))
    return (noise.draws(torch.tensor(seeds), at, torch.arange(ids)).double().numpy() + 0.5) / noise.PRIME


def chi_square(counts: NDArray[np.int64]) -> float:
    """In standard deviations from what equal chances give."""
    expected, free = counts.sum() / counts.size, counts.size - 1
    return float((((counts - expected) ** 2).sum() / expected - free) / np.sqrt(2 * free))


def pairs_chi_square(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return chi_square(np.histogram2d(a.ravel(), b.ravel(), bins=16, range=((0, 1), (0, 1)))[0].astype(np.int64))


def by_hand(seed: int, position: int, token: int) -> int:
    """The definition, in Python's integers."""
    field, x, constants = 2**31 - 1, 1, []
    for _ in range(5 * 7):
        x = x * 48271 % field
        constants.append(x)
    lanes = []
    for lane in range(7):
        state = 0
        for round_, word in enumerate((seed % 2**30, seed // 2**30, position, 0, 0)):
            state = pow(state + word + constants[round_ * 7 + lane], 5, field)
        lanes.append(state)
    total: int = sum(c * token**degree for degree, c in enumerate(lanes))
    return total % (2**30 - 35)


@given(st.integers(0, MAX_SEED), st.integers(0, noise.MAX_POSITION), st.integers(0, 2**20))
def test_no_sum_or_product_overflows(seed: int, position: int, token: int) -> None:
    found = noise.draws(torch.tensor([seed]), torch.tensor([[position]]), torch.tensor([token]))
    assert found.item() == by_hand(seed, position, token)


def test_draws_are_uniform() -> None:
    values = drawn([0, 1, 12345, MAX_SEED], list(range(200)), 1000)
    assert abs(chi_square(np.histogram(values, BINS, (0, 1))[0])) < 4.5
    lowest_bits = (values * noise.PRIME).astype(np.int64) % BINS
    assert abs(chi_square(np.bincount(lowest_bits.ravel(), minlength=BINS))) < 4.5


def test_neighbours_in_every_argument_are_independent() -> None:
    """Also at distances that a weak mix lets through: powers of two in seed and position."""
    seeds = [0, 1, 2, 1024, 2**30, 2**31 - 1, MAX_SEED]
    positions = [*range(64), *range(1024, 1088)]
    values = drawn(seeds, positions, 512)
    scores: dict[tuple[object, ...], float] = {
        ("seed", i, j): pairs_chi_square(values[i], values[j]) for i, j in itertools.combinations(range(7), 2)
    }
    scores |= {("position", d): pairs_chi_square(values[:, :-d], values[:, d:]) for d in (1, 2, 8, 64)}
    scores |= {("id", d): pairs_chi_square(values[..., :-d], values[..., d:]) for d in (1, 2, 64, 256)}
    assert max(scores.values()) < 5, scores


def test_sums_of_neighbours_show_no_hidden_relation() -> None:
    """Four ids that cancel in a linear hash: v, v+1, w, w+1."""
    values = drawn([3], list(range(2000)), 130)
    mixed = (values[..., 0] - values[..., 1] - values[..., 100] + values[..., 101]) % 1
    assert abs(chi_square(np.histogram(mixed, BINS, (0, 1))[0])) < 4.5


def test_triples_fill_the_cube() -> None:
    """In ids, positions and seeds, one after the other: planes, as of a linear congruence, leave parts empty."""
    values = drawn(list(range(40)), list(range(40)), 40)
    for axis in range(3):
        along = np.moveaxis(values, axis, -1)
        triples = np.stack([along[..., i : i - 2 or None].ravel() for i in range(3)], axis=1)
        counts = np.histogramdd(triples, bins=8, range=[(0, 1)] * 3)[0].astype(np.int64)
        assert abs(chi_square(counts.ravel())) < 4.5


def test_the_first_draws_of_seeds_that_follow_each_other_are_uniform_and_independent() -> None:
    """As of somebody who asks with seeds 0, 1, 2, …"""
    count = 200_000
    found = noise.draws(torch.arange(count), torch.full((count, 1), 17), torch.tensor([5]))
    values = (found.double().numpy().ravel() + 0.5) / noise.PRIME
    assert abs(chi_square(np.histogram(values, BINS, (0, 1))[0])) < 4.5
    for distance in (1, 2, 64, 1000):
        assert abs(pairs_chi_square(values[:-distance], values[distance:])) < 4.5


def test_every_bit_of_seed_and_position_turns_half_of_the_bits() -> None:
    random, ids = np.random.default_rng(6), torch.arange(16)
    seeds, positions = random.integers(0, MAX_SEED, 300), random.integers(0, 2**30, 300)
    before = noise.draws(torch.from_numpy(seeds), torch.from_numpy(positions)[:, None], ids)
    flips = [(1 << bit, 0) for bit in range(60)] + [(0, 1 << bit) for bit in range(30)]
    for seed_bit, position_bit in flips:
        at = torch.from_numpy(positions ^ position_bit)[:, None]
        turned = (before ^ noise.draws(torch.from_numpy(seeds ^ seed_bit), at, ids)).numpy().ravel()
        share = (turned[:, None] >> np.arange(30) & 1).mean(0)
        assert np.abs(share - 0.5).max() < 5.5 * 0.5 / np.sqrt(turned.size), (seed_bit, position_bit)


def test_no_two_places_share_their_noise() -> None:
    """No period in positions, no pair of seeds that is the same."""
    seeds = torch.tensor([0, 1, 2, 2**30, 2**30 + 1, MAX_SEED])
    found = noise.coefficients(seeds, torch.arange(20_000).expand(len(seeds), -1)).reshape(-1, noise.INDEPENDENT)
    assert len(np.unique(found.numpy(), axis=0)) == len(found)


def test_a_seed_is_no_other_seed_shifted() -> None:
    """Streams of a counter that seed and position are added to would overlap."""
    values = drawn([0, 1, 2, 2**30], list(range(128)), 256)
    for first, second in itertools.permutations(range(4), 2):
        for shift in (1, 2, 3):
            assert abs(pairs_chi_square(values[first, shift:], values[second, :-shift])) < 5


def test_the_ends_are_never_reached() -> None:
    ends = torch.tensor([0, noise.PRIME - 1])
    uniform = (ends.double() + 0.5) / noise.PRIME
    assert uniform[0] > 0 and uniform[1] < 1
    found = noise.exponentials(ends)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), -torch.log1p(-uniform), rtol=1e-6, atol=0)
    assert torch.isfinite(1e-38 / found).all() and (1e-18 / found > 0).all()  # the race divides by it


def test_the_test_sees_a_weak_generator() -> None:
    """A plain linear congruence of seed, position and id fails what ours passes."""
    ids, positions = np.arange(512), np.arange(128)[:, None]
    weak = (48271 * ids + 16807 * positions + 11) % noise.PRIME / noise.PRIME
    assert pairs_chi_square(weak[:, :-1], weak[:, 1:]) > 50


def test_exponentials_are_exact_and_finite_to_both_ends() -> None:
    edge = torch.arange(200)
    d = torch.cat([edge, noise.PRIME - 1 - edge, torch.arange(0, noise.PRIME, 50021)])
    found = noise.exponentials(d).double().numpy()
    wanted = -np.log1p(-(d.numpy() + 0.5) / noise.PRIME)
    # the float32 of s near 1 costs nothing: its complement is computed from the integer
    assert np.abs(found / wanted - 1).max() < 2e-6
    assert found.min() > 4e-10 and found.max() < 22


def test_exponentials_have_the_moments_of_the_law() -> None:
    values = noise.exponentials(noise.draws(torch.tensor([9]), torch.arange(1000)[None], torch.arange(1000))).double()
    for power, moment in ((1, 1), (2, 2), (3, 6)):
        assert (values**power).mean().item() == pytest.approx(moment, rel=0.02)
