"""The tiny pair as a patient."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_runtime.bench.system import load_decoder
from dflash_runtime.doctor.patient import Patient, load_oracle
from tests.models import tiny_bundle as bundles
from tests.models.tiny_pair import held_back_questions


@pytest.fixture(scope="session")
def tiny_bundle() -> Path:
    return bundles.tiny_bundle("fp32").path


def patient_of(folder: Path, questions: Sequence[str], new_tokens: int) -> Patient:
    bundle = Bundle.open(folder)
    oracle, why = load_oracle(bundle)
    return Patient(
        bundle=bundle, decoder=load_decoder(bundle, "onnxruntime", 1), questions=tuple(questions),
        new_tokens=new_tokens, oracle=oracle, why_no_oracle=why,
    )  # fmt: skip


@pytest.fixture(scope="session")
def patient(tiny_bundle: Path) -> Patient:
    return patient_of(tiny_bundle, held_back_questions()[:4], 48)
