"""What two configs and a tokenizer say of each other, before anything is computed: every mismatch, not the first."""

from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from dflash_engines.finding import Finding, fault, ok, warning
from dflash_export.checkpoint import TargetModel
from dflash_export.doctor.settings import target_rope
from dflash_export.drafter_config import DrafterConfig


def compare(target: TargetModel, drafter: DrafterConfig, tokenizer: PreTrainedTokenizerBase) -> list[Finding]:
    """One finding for each thing that has to match, or that tends to be wrong."""
    return [
        *_sizes(target, drafter),
        *_taps(target, drafter),
        *_mask(target, drafter, tokenizer),
        _rope(target, drafter),
        _limits(target, drafter),
        _template(tokenizer),
    ]


def _sizes(target: TargetModel, drafter: DrafterConfig) -> Iterator[Finding]:
    vocab, hidden = target.embedding.shape
    wanted = {"hidden_size": (drafter.hidden_size, hidden), "vocab_size": (drafter.vocab_size, vocab)}
    if drafter.num_target_layers is not None:
        wanted["num_target_layers"] = (drafter.num_target_layers, len(target.layers))
    for key, (own, theirs) in wanted.items():
        if own == theirs:
            yield ok(key, f"{own} in both")
        else:
            yield fault(key, f"{own} in the drafter, {theirs} in the target", "take the drafter of this very target")


def _taps(target: TargetModel, drafter: DrafterConfig) -> Iterator[Finding]:
    ids, last = list(drafter.target_layer_ids), len(target.layers) - 1
    if max(ids) > last:
        yield fault(
            "target_layer_ids",
            f"{ids} reach past the target's last layer, {last}",
            "ids count decoder layers from 0; check that the drafter is this target's",
        )
    elif last in ids:
        yield fault(
            "target_layer_ids",
            f"{ids} name the last layer, {last}, which transformers reports after the final norm only",
            "train on earlier layers; what this drafter saw is ambiguous",
        )
    else:
        yield ok("target_layer_ids", f"{ids} of {last + 1} layers")


def _mask(target: TargetModel, drafter: DrafterConfig, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    mask, rows = drafter.mask_token_id, target.embedding.shape[0]
    if not 0 <= mask < rows:
        yield fault(
            "mask_token_id",
            f"{mask} has no row in the target's embedding of {rows}",
            "take the id that the drafter was trained with; the table may have to be the padded one",
        )
    elif mask in target.stop_token_ids:
        yield fault(
            "mask_token_id",
            f"{mask} is one of the stop ids {list(target.stop_token_ids)}",
            "an answer would end at its own padding; the drafter needs a mask token of its own",
        )
    elif mask < len(tokenizer) and mask not in tokenizer.all_special_ids and mask not in _added(tokenizer):
        yield warning(
            "mask_token_id",
            f"{mask} is {tokenizer.convert_ids_to_tokens(mask)!r}, an ordinary token that answers may use",
            "a mask token should be one that is never written; see the drafter's card",
        )
    else:
        name = tokenizer.convert_ids_to_tokens(mask) if mask < len(tokenizer) else "a row behind the tokenizer's last"
        yield ok("mask_token_id", f"{mask}, {name}")


def _added(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return set(tokenizer.get_added_vocab().values())


def _rope(target: TargetModel, drafter: DrafterConfig) -> Finding:
    own, theirs = drafter.rope_parameters, target_rope(target)
    if "rope_theta" not in theirs or own["rope_theta"] == theirs["rope_theta"]:
        return ok("rope", f"drafter: {own['rope_type']}, theta {own['rope_theta']:g}")
    return warning(
        "rope",
        f"theta is {own['rope_theta']:g} in the drafter and {theirs['rope_theta']:g} in the target",
        "published drafters have their target's; look for rope_theta and rope_parameters in the drafter's config",
    )


def _limits(target: TargetModel, drafter: DrafterConfig) -> Finding:
    windows = {view.window for view in drafter.layers if view.window is not None}
    seen = f", windows of {sorted(windows)} tokens" if windows else ""
    ceiling = target.model.config.get_text_config().max_position_embeddings
    return ok("limits", f"blocks of {drafter.block_size}{seen}, target of {ceiling} positions")


def _template(tokenizer: PreTrainedTokenizerBase) -> Finding:
    if tokenizer.chat_template:
        return ok("chat template", "the tokenizer has one")
    return warning(
        "chat template",
        "the tokenizer has none: prompts go in as plain text",
        "if the model is a chat model, "
        "fetch its chat_template.jinja: a drafter trained on chats is kept far less without it",
    )


def as_prompt(tokenizer: PreTrainedTokenizerBase, question: str) -> list[int]:
    """Token ids of a question, through the chat template where there is one."""
    text = question
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": question}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    ids: list[int] = tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    return ids
