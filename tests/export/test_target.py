"""The target program in PyTorch against transformers: logits and taps, in chunks, in two slots at once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from dflash_engines.contract import Dim, target
from dflash_export.checkpoint import locate
from dflash_export.programs.build import Modules, assemble, load_pair
from tests.export.pairs import FAMILY_CASES, ROPE_CASES, PairCase, write_pair

EXTRA_CASES = (
    PairCase(name="tied", tied=True),
    PairCase(name="llama-biases", settings={"attention_bias": True, "mlp_bias": True}),
    PairCase(name="qwen2-sliding", family="qwen2", settings={
        "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    PairCase(name="mistral-without-window", family="mistral", settings={"sliding_window": None}),
    PairCase(name="gemma2-softcaps", family="gemma2", settings={
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}),
)  # fmt: skip
LENGTHS = (41, 30)  # tokens of the two slots; longer than every window
ROWS = 60


def build(case: PairCase, folder: Path) -> tuple[Path, Modules]:
    target_folder, drafter_folder = write_pair(case, folder)
    models = load_pair(locate(str(target_folder)), locate(str(drafter_folder)))
    return target_folder, assemble(models, draft_vocab=None, hidden_output=True)


def zero_caches(modules: Modules, slots: int) -> list[Tensor]:
    bindings = target(modules.geometry).inputs[4:]
    sizes = {Dim.SLOTS: slots, Dim.CACHE_ROWS: ROWS}
    return [torch.zeros([sizes[d] if isinstance(d, Dim) else d for d in b.shape]) for b in bindings]


@torch.no_grad()
def in_chunks(modules: Modules, tokens: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Logits and taps of every row, both slots stepped together."""
    caches, logits, taps = zero_caches(modules, len(tokens)), [], []
    for begin in range(0, tokens.shape[1], chunk):
        part = tokens[:, begin : begin + chunk]
        start = torch.full((len(tokens),), begin)
        rows = torch.arange(part.shape[1]).expand(len(tokens), -1)
        out = modules.target(part, start, start + part.shape[1], rows, *caches)
        logits.append(out[0])
        taps.append(out[1])
        caches = list(out[2:])
    return torch.cat(logits, 1), torch.cat(taps, 1)


@pytest.mark.parametrize("case", [*FAMILY_CASES, *ROPE_CASES, *EXTRA_CASES], ids=lambda case: case.name)
def test_logits_and_taps_are_those_of_transformers(case: PairCase, tmp_path: Path) -> None:
    folder, modules = build(case, tmp_path)
    tokens = torch.randint(4, 260, (2, LENGTHS[0]), generator=torch.Generator().manual_seed(3))
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        wanted = reference(tokens, output_hidden_states=True)
    logits, taps = in_chunks(modules, tokens, chunk=11)
    torch.testing.assert_close(logits, wanted.logits, rtol=1e-4, atol=1e-4)
    # Tap id i is transformers' hidden_states[i + 1]: the output of decoder layer i.
    ids = modules.draft.drafter.config.target_layer_ids
    torch.testing.assert_close(taps, torch.cat([wanted.hidden_states[i + 1] for i in ids], -1), rtol=1e-4, atol=1e-4)


def test_slots_at_different_rows_do_not_see_each_other(tmp_path: Path) -> None:
    """Two requests of unequal lengths, stepped together, against each alone."""
    _, modules = build(FAMILY_CASES[3], tmp_path)
    tokens = torch.randint(4, 260, (2, max(LENGTHS)), generator=torch.Generator().manual_seed(4))
    alone = []
    with torch.no_grad():
        for slot, length in enumerate(LENGTHS):
            caches, row = zero_caches(modules, 1), tokens[slot : slot + 1]
            out = modules.target(
                row[:, :length], torch.tensor([0]), torch.tensor([length]), torch.tensor([[0]]), *caches
            )
            rest = (torch.tensor([length]), torch.tensor([length + 3]), torch.arange(3)[None])
            alone.append((modules.target(row[:, :3], *rest, *out[2:])[0], out[2:]))
        both = [torch.cat(pair) for pair in zip(alone[0][1], alone[1][1], strict=True)]
        start = torch.tensor(LENGTHS)
        together = modules.target(tokens[:, :3], start, start + 3, torch.arange(3).expand(2, -1), *both)[0]
    torch.testing.assert_close(together, torch.cat([logits for logits, _ in alone]), rtol=1e-5, atol=1e-5)


def test_an_idle_slot_writes_no_nan(tmp_path: Path) -> None:
    """Parked far behind every window, an idle slot would have no visible column: softmax of nothing is NaN."""
    _, modules = build(FAMILY_CASES[3], tmp_path)
    with torch.no_grad():
        out = modules.target(
            torch.full((1, 4), 5),
            torch.tensor([50]),
            torch.tensor([1]),
            torch.arange(4)[None],
            *zero_caches(modules, 1),
        )
    assert all(bool(torch.isfinite(t).all()) for t in out)
