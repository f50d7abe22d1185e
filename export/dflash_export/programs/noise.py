"""Noise for sampling: one exponential variate for every (seed, position, id), the same wherever it is asked for.

A counter-based generator in int64 arithmetic that every engine has (no unsigned integers, shifts or xor):

1. Seed and position are mixed into `INDEPENDENT` coefficients by rounds of x -> (x + constant)^5 modulo
   2^31 - 1, a permutation of the field (as in the cipher MiMC). There is no state, and so neither a period nor
   streams that could overlap: two positions share their noise only where all coefficients collide.
2. The draw of an id is the polynomial with these coefficients at that id, modulo the prime 2^30 - 35. Uniform
   coefficients make the draws of any `INDEPENDENT` ids exactly independent (Carter and Wegman, 1979).

A draw d in 0..PRIME-1 stands for (d + 0.5) / PRIME, so 0 and 1 are never reached.
"""

import torch
from torch import Tensor

PRIME = 2**30 - 35  # INDEPENDENT products of two residues fit in an int64
INDEPENDENT = 7
_FIELD = 2**31 - 1  # 5 and _FIELD - 1 have no common divisor, so the fifth power is a permutation
MAX_POSITION = _FIELD - 1
_HALF = 2**30  # both halves of a seed are below _FIELD, where each is another number
_HALVINGS = 6
_TERMS = 5


def draws(seed: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """Integers 0..PRIME-1 [B,R,N] for seed [B], position [B,R] and ids [N] or [B,R,N].

    Seeds are within 0..dflash_engines.sampling.MAX_SEED, positions within 0..MAX_POSITION, ids within 0..PRIME-1.
    """
    coefficient = coefficients(seed, position)[..., None]  # [B, R, INDEPENDENT, 1]
    power, total = ids, coefficient[:, :, 0] + coefficient[:, :, 1] * ids
    for degree in range(2, INDEPENDENT):
        power = torch.remainder(power * ids, PRIME)
        total = total + coefficient[:, :, degree] * power
    return torch.remainder(total, PRIME)


def coefficients(seed: Tensor, position: Tensor) -> Tensor:
    """Residues of PRIME, [B,R,INDEPENDENT]: one lane of mixing for each."""
    low, high = (half[:, None, None] for half in (torch.remainder(seed, _HALF), seed // _HALF))
    state = torch.zeros_like(low)
    words = (low, high, position[..., None], state, state)
    for constants, word in zip(_constants(), words, strict=True):
        state = torch.remainder(state + word + constants.to(seed.device), _FIELD)
        square = torch.remainder(state * state, _FIELD)
        state = torch.remainder(torch.remainder(square * square, _FIELD) * state, _FIELD)
    return torch.remainder(state, PRIME)


def exponentials(drawn: Tensor) -> Tensor:
    """Exponential variates -log(1 - s) for s = (drawn + 0.5) / PRIME: from 4e-10 to 22, with full relative accuracy.

    Only correctly rounded operations: a library's `log` may differ in the last bit between the middle and the end
    of an array, and then a token would depend on the batch. With z = (1 - s)^(1 / 2^n), 1 - z is s over the
    product of all 1 + z^(2^i), and -log z is 2 atanh((1 - z) / (1 + z)).
    """
    s = (drawn.float() + 0.5) / PRIME
    root = ((PRIME - 1 - drawn).float() + 0.5) / PRIME
    product = torch.ones_like(root)
    for _ in range(_HALVINGS):
        root = root.sqrt()
        product = product * (1 + root)
    t = s / (product * (1 + root))
    square = t * t
    series: Tensor = torch.zeros_like(t)
    for term in range(_TERMS, 0, -1):
        series = series * square + 1 / (2 * term - 1)
    variate: Tensor = series * t * 2 ** (_HALVINGS + 1)
    return variate


def _constants() -> tuple[Tensor, ...]:
    """Residues without a pattern, for each round: the multiplicative sequence of Park and Miller, from 1."""
    values, x = [], 1
    for _ in range(5 * INDEPENDENT):
        x = x * 48271 % _FIELD
        values.append(x)
    return tuple(torch.tensor(values).view(5, INDEPENDENT))
