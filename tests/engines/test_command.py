"""Commands end in one line and an exit code."""

from collections.abc import Callable

import pytest

from dflash_engines.command import run_command
from dflash_engines.errors import BundleError, CheckpointError, EngineError, RequestError


def raising(fault: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise fault

    return command


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (BundleError("what, where, how"), 2),
        (CheckpointError("what, where, how"), 2),
        (RequestError("what, where, how"), 2),
        (EngineError("what, where, how"), 1),
    ],
)
def test_errors_for_users_are_one_line(fault: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(raising(fault), extra="ort")
    assert ended.value.code == code
    assert capsys.readouterr().err == "error: what, where, how\n"


def test_markup_in_a_message_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(raising(BundleError("shape [1, 2] and [bold]")), extra="ort")
    assert capsys.readouterr().err == "error: shape [1, 2] and [bold]\n"


def test_a_missing_package_names_the_extra_that_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(raising(ModuleNotFoundError("No module named 'torch'", name="torch")), extra="export")
    assert ended.value.code == 2
    assert "pip install 'dflash-trt[export]'" in capsys.readouterr().err


def test_a_fault_of_our_own_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError):
        run_command(raising(ModuleNotFoundError(name="dflash_engines.nothing")), extra="ort")


def test_ctrl_c_ends_quietly() -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(raising(KeyboardInterrupt()), extra="ort")
    assert ended.value.code == 130
