"""Each tap of the `target` program, in PyTorch, against transformers' hidden states."""

import torch

from dflash_engines.finding import Finding, fault, ok
from dflash_export.checkpoint import TargetModel
from dflash_export.doctor.material import Answer
from dflash_export.drafter import Drafter
from dflash_export.programs.build import Pair, assemble

_ALLOWED = 1e-3  # of the tap's own size


def compare(target: TargetModel, drafter: Drafter, answer: Answer) -> list[Finding]:
    """One finding a tap. The target's seams are open afterwards."""
    program = assemble(Pair(target=target, drafter=drafter), draft_vocab=None, hidden_output=True).target
    rows = len(answer.tokens)
    caches = [torch.zeros(1, shape.kv_heads, rows, shape.head_dim) for shape in target.caches for _ in range(2)]
    config = drafter.config
    for _ in config.layers:
        caches += [torch.zeros(1, config.num_key_value_heads, rows, config.head_dim) for _ in range(2)]
    tokens = torch.tensor([answer.tokens])
    out = program(tokens, torch.tensor([0]), torch.tensor([rows]), torch.tensor([[rows - 1]]), *caches)
    width = config.hidden_size
    return [
        _compared(tap, out[1][..., place * width : (place + 1) * width], answer)
        for place, tap in enumerate(config.target_layer_ids)
    ]


def _compared(tap: int, found: torch.Tensor, answer: Answer) -> Finding:
    wanted = answer.hidden[tap + 1]
    off = float((found - wanted).abs().max() / wanted.abs().max())
    if off <= _ALLOWED:
        return ok(f"tap {tap}", f"transformers' hidden_states[{tap + 1}], within {off:.1e} of its largest number")
    nearest = min(range(len(answer.hidden)), key=lambda i: float((found - answer.hidden[i]).abs().max()))
    return fault(
        f"tap {tap}",
        f"off from transformers' hidden_states[{tap + 1}] by {off:.1e}; hidden_states[{nearest}] is nearest",
        "this architecture isn't traced right: report it, with the model's config.json",
    )
