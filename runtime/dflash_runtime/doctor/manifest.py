"""What a bundle says of itself, and its tokenizer: everything that can be judged without running a program."""

from dflash_engines.finding import Finding, fault, ok, warning
from dflash_runtime.detokenize import special_tokens
from dflash_runtime.doctor.patient import Patient


def examine_manifest(patient: Patient) -> list[Finding]:
    """Files, mask and stop ids, vocabulary, limits, template."""
    manifest = patient.bundle.manifest
    blocks = ", ".join(map(str, manifest.limits.block_sizes))
    return [
        ok("files", f"{len(manifest.files)} files, each with its listed SHA-256"),
        _mask(patient),
        _vocabulary(patient),
        ok("limits", f"{manifest.limits.max_len} tokens, blocks of {blocks}; trained for {manifest.block_size}"),
        _blocks(patient),
        _template(patient),
    ]


def _mask(patient: Patient) -> Finding:
    manifest, tokenizer = patient.bundle.manifest, patient.decoder.tokenizer
    mask, name = manifest.mask_token_id, tokenizer.id_to_token(manifest.mask_token_id)
    added = tokenizer.get_added_tokens_decoder()
    if mask in manifest.stop_token_ids:
        return fault(
            "mask_token_id",
            f"{mask} is one of the stop ids {list(manifest.stop_token_ids)}",
            "export a drafter that has a mask token of its own",
        )
    if name is not None and mask not in added:
        return warning(
            "mask_token_id",
            f"{mask} is {name!r}, an ordinary token that answers may use",
            "see the drafter's card for the id it was trained with, correct its config.json, export again",
        )
    return ok("mask_token_id", f"{mask}, {name or 'a row behind the last token'}")


def _vocabulary(patient: Patient) -> Finding:
    manifest, tokenizer = patient.bundle.manifest, patient.decoder.tokenizer
    known, rows = tokenizer.get_vocab_size(), manifest.geometry.vocab_size
    if known > rows:
        return fault(
            "vocabulary",
            f"the tokenizer knows {known} tokens, the target has {rows} rows",
            "tokenizer and target are not of one model; export with the target's own tokenizer",
        )
    return ok("vocabulary", f"{known} tokens, {rows} rows, the drafter proposes {manifest.draft_vocab_size}")


def _blocks(patient: Patient) -> Finding:
    manifest = patient.bundle.manifest
    if (largest := max(manifest.limits.block_sizes)) < manifest.block_size:
        return warning(
            "block size",
            f"blocks of up to {largest} of a drafter that was trained for {manifest.block_size}",
            "export without --block-sizes to allow all of them",
        )
    return ok("block size", f"up to {largest}, as trained")


def _template(patient: Patient) -> Finding:
    if patient.decoder.encoder.template is not None:
        return ok("chat template", "the bundle has one")
    special = sorted(special_tokens(patient.decoder.tokenizer))[:4]
    return warning(
        "chat template",
        f"the bundle has none (special tokens: {', '.join(special) or 'none'})",
        "if the model is a chat model, put its chat_template.jinja beside the target's config.json and export "
        "again: prompts without the template are kept far less",
    )
