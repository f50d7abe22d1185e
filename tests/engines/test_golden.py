from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dflash_engines.errors import BundleError
from dflash_engines.golden import Call, Golden

CASES = Golden(
    calls=(
        Call(program="target", first_slot=0, inputs={"tokens": np.array([[5, 6]])}),
        Call(program="accept_sampling", first_slot=1, inputs={"block": np.arange(6).reshape(2, 3)}),
    ),
    results=({"best": np.array([[7]])}, {"accepted": np.array([1, 0])}),
    tolerance=0.125,
)


def test_cases_are_read_as_they_were_saved(tmp_path: Path) -> None:
    CASES.save(tmp_path / "golden.npz")
    found = Golden.load(tmp_path / "golden.npz")
    assert found.tolerance == CASES.tolerance
    assert [(call.program, call.first_slot) for call in found.calls] == [("target", 0), ("accept_sampling", 1)]
    assert found.calls[1].inputs["block"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [{name: value.tolist() for name, value in result.items()} for result in found.results] == [
        {"best": [[7]]},
        {"accepted": [1, 0]},
    ]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def spoil_the_first_array(file: Path) -> None:
    """Past the header of the first entry, in what is compressed."""
    content = bytearray(file.read_bytes())
    content[60:90] = bytes(30)
    file.write_bytes(content)


def one_array(file: Path) -> None:
    with file.open("wb") as opened:
        np.save(opened, np.array([1]))


def keep(*names: str) -> Callable[[Path], None]:
    """Leaves only these arrays in the file."""
    return lambda file: np.savez(file, allow_pickle=False, **{name: np.array([0.5]) for name in names})


FAULTS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "another format": lambda file: file.write_bytes(b"hello"),
    "cut": cut,
    "spoilt": spoil_the_first_array,
    "one array": one_array,
    "no tolerance": keep("00.target.0.in.tokens", "00.target.0.out.best"),
    "no inputs": keep("tolerance", "00.target.0.out.best"),
    "no results": keep("tolerance", "00.target.0.in.tokens"),
    "another name": keep("tolerance", "weights"),
    "a tolerance of no value": lambda file: np.savez(file, tolerance=np.array(0.5)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_holds_no_cases_is_a_bundle_error(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "golden.npz"
    CASES.save(file)
    FAULTS[fault](file)
    with pytest.raises(BundleError, match=r"golden\.npz holds no golden cases"):
        Golden.load(file)
