"""The target model as the trainer uses it: loaded once, identified by a hash, cheap in mixed precision."""

import hashlib
import inspect
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPast

from dflash_training.errors import TrainingError
from dflash_training.slots import ATTENTION_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A causal language model in evaluation mode, its tokenizer, and the hash of its weights.

    `dtype`: of its linear layers and its K/V.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: str
    name: str
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def head(self) -> Tensor:
        """The output table, [V, H]."""
        return _weight(self.model.get_output_embeddings())

    @property
    def embedding(self) -> Tensor:
        """The input table, [V, H]."""
        return _weight(self.model.get_input_embeddings())

    def read(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: object, *, states: bool
    ) -> BaseModelOutputWithPast:
        """One pass of the model's body: `last_hidden_state`, and all `hidden_states` where wanted."""
        body = self.model.base_model
        names = inspect.signature(type(body).forward).parameters
        cache_name = "cache" if "cache" in names else "past_key_values"  # transformers renamed it
        out: BaseModelOutputWithPast = body(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            output_hidden_states=states,
            **{cache_name: cache},
        )
        return out


def _weight(module: nn.Module) -> Tensor:
    assert isinstance(module.weight, Tensor)
    return module.weight.detach()


def weights_revision(folder: Path) -> str:
    """sha256 over the names and bytes of the folder's safetensors files, first 16 hex digits."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise TrainingError(f"{folder}: no *.safetensors file; give a Hugging Face folder of the target")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()[:16]


def linears_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Put the weights of all linear layers but the head in `dtype`; the residual stream stays in fp32.

    Norms and residual sums in fp32 keep near-ties in place far more often than an all-bf16 model.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and not name.endswith("lm_head"):
            layer.to(dtype)
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].to(dtype),))


def load_target(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Target:
    """Load a Hugging Face folder (or a folder of parts already joined) for generation and features.

    Raises:
        TrainingError: the folder has no weights in safetensors format.
    """
    revision = weights_revision(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=ATTENTION_NAME)
    model.eval()
    model.requires_grad_(False)
    if dtype != torch.float32:
        linears_in(model, dtype)
    nn.Module.to(model, device)
    return Target(
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        revision=revision,
        name=folder.name,
        dtype=dtype,
    )
