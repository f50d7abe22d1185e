"""bundle.json: what a bundle holds, from which models, for which limits. Written by the exporter, read by engines."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from dflash_engines.contract import Geometry, Limits

SCHEMA_VERSION = 1
Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Backend = Literal["onnxruntime", "tensorrt", "tensorrt-rtx"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSource(_Record):
    """Where a checkpoint came from."""

    id: str  # Hugging Face id, or the folder it was read from
    revision: str  # hub commit, or "local"
    sha256: str  # over its weight files, in name order


class FileRecord(_Record):
    """A file of the bundle, its path relative to the bundle's folder."""

    sha256: str
    bytes: int


class Parity(_Record):
    """How far a program is from PyTorch on real prompts."""

    largest_difference: float
    argmax_agreement: float
    rows: int


class Manifest(_Record):
    """The whole of bundle.json."""

    schema_version: int
    target: ModelSource
    drafter: ModelSource
    architecture: str  # the target's Hugging Face model_type
    geometry: Geometry
    limits: Limits
    target_layer_ids: tuple[int, ...]
    block_size: int  # the block the drafter was trained for
    mask_token_id: int
    stop_token_ids: tuple[int, ...]
    draft_vocab_size: int  # tokens the drafter can propose
    backend: Backend = "onnxruntime"  # whose operators quantised products are written in
    precision: Precision  # of the target
    draft_precision: Precision  # of the draft program; it changes how much is accepted, never what is written
    hidden_output: bool
    programs: dict[str, str]  # program name to file, "target" to "target.onnx"
    parity: dict[str, Parity]
    exporter: dict[str, str]  # package to version
    files: dict[str, FileRecord]

    @field_validator("mask_token_id", "stop_token_ids")
    @classmethod
    def _are_tokens(cls, value: int | tuple[int, ...], info: ValidationInfo) -> int | tuple[int, ...]:
        if "geometry" in info.data:  # else the fault is there
            vocab_size = info.data["geometry"].vocab_size
            ids = (value,) if isinstance(value, int) else value
            outside = next((i for i in ids if not 0 <= i < vocab_size), None)
            if outside is not None:
                raise ValueError(f"token id {outside} is outside of the vocabulary 0..{vocab_size - 1}")
        return value

    @field_validator("block_size")
    @classmethod
    def _covers_the_limits(cls, value: int, info: ValidationInfo) -> int:
        if value < 2:
            raise ValueError(f"{value} leaves no token to draft; it is at least 2")
        if "limits" in info.data and (largest := max(info.data["limits"].block_sizes)) > value:
            raise ValueError(f"the limits allow blocks of {largest}, the drafter was trained for {value}")
        return value
