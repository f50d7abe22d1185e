"""Writes the scripted pair as a bundle by hand: bundle.json as documented, not through our own classes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.engines.scripted_onnx import (
    WEIGHTS_FILE,
    accept_mask_program,
    accept_program,
    draft_program,
    target_program,
)
from tests.engines.scripted_pair import MASK_TOKEN_ID, SCRIPT, STOP_TOKEN_IDS, VOCAB_SIZE

MAX_LEN = 48
BLOCK_SIZE = 6
PREFILL_CHUNK = 5
SPECIAL_TOKENS = ("<|end|>", "<|start|>", "<|mask|>", "<|turn|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Four special tokens, then the 256 bytes in the order of their characters."""
    alphabet = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def write_bundle(folder: Path, *, max_len: int = MAX_LEN, max_batch: int = 1) -> Path:
    """A whole bundle in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = {
        "target": target_program(),
        "draft": draft_program(),
        "accept": accept_program(),
        "accept_mask": accept_mask_program(),
    }
    for name, model in programs.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / WEIGHTS_FILE).write_bytes(np.array(SCRIPT, np.int64).tobytes())
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    write_manifest(folder, manifest(max_len, max_batch))
    return folder


def write_manifest(folder: Path, fields: dict[str, Any]) -> None:
    """bundle.json with the sizes and hashes of the files that lie there."""
    files = {
        file.name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "bytes": file.stat().st_size}
        for file in sorted(folder.iterdir())
        if file.name != "bundle.json"
    }
    (folder / "bundle.json").write_text(json.dumps(fields | {"files": files}))


def manifest(max_len: int = MAX_LEN, max_batch: int = 1) -> dict[str, Any]:
    """All fields of bundle.json but the files."""
    cache = [{"kv_heads": 1, "head_dim": 1}]
    source = {"id": "scripted", "revision": "local", "sha256": "0" * 64}
    return {
        "schema_version": 1,
        "target": source,
        "drafter": source,
        "architecture": "scripted",
        "geometry": {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 8,
            "taps": 1,
            "target_caches": cache,
            "draft_caches": cache,
        },
        "limits": {
            "max_len": max_len,
            "max_batch": max_batch,
            "prefill_chunk": PREFILL_CHUNK,
            "block_sizes": [BLOCK_SIZE],
        },
        "target_layer_ids": [0],
        "block_size": BLOCK_SIZE,
        "mask_token_id": MASK_TOKEN_ID,
        "stop_token_ids": list(STOP_TOKEN_IDS),
        "draft_vocab_size": VOCAB_SIZE,
        "precision": "fp32",
        "draft_precision": "fp32",
        "hidden_output": False,
        "programs": {name: f"{name}.onnx" for name in ("target", "draft", "accept", "accept_mask")},
        "parity": {},
        "exporter": {},
    }
