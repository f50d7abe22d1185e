from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_engines.errors import RequestError
from dflash_runtime.stop_strings import StopScanner, stop_strings

TEXTS = st.text("ab", max_size=30)  # two letters: overlaps and false beginnings everywhere
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def naive(text: str, strings: list[str]) -> tuple[str, bool]:
    """Of the whole text: cut where the match begins that ends first, at the longest of those that end together."""
    found = [(text.find(s) + len(s), -len(s)) for s in strings if s in text]
    if not found:
        return text, False
    end, length = min(found)
    return text[: end + length], True


def pieces(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


def scan(strings: list[str], parts: list[str]) -> tuple[list[str], bool]:
    scanner, shown = StopScanner(strings), list[str]()
    for part in parts:
        shown.append(scanner.push(part))
        if scanner.matched:
            return shown, True
    return [*shown, scanner.flush()], False


@given(text=TEXTS, strings=STOPS, cuts=st.lists(st.integers(0, 30)))
@example(text="aaab", strings=["aab"], cuts=[1, 2, 3])  # a beginning that turns out false
@example(text="xbcd", strings=["abcd", "bc"], cuts=[])  # the one that is complete first
def test_any_cut_of_the_text_gives_what_a_search_of_the_whole_gives(
    text: str, strings: list[str], cuts: list[int]
) -> None:
    shown, matched = scan(strings, pieces(text, cuts))
    assert ("".join(shown), matched) == naive(text, strings)


@given(text=TEXTS, strings=STOPS, cuts=st.lists(st.integers(0, 30)))
def test_what_was_shown_is_never_taken_back(text: str, strings: list[str], cuts: list[int]) -> None:
    """However the text goes on, it begins with what was shown; and no more is held back than need be."""
    scanner, seen, shown = StopScanner(strings), "", ""
    for part in pieces(text, cuts):
        shown += scanner.push(part)
        if scanner.matched:
            return
        seen += part
        for string in strings:
            assert naive(seen + string, strings)[0].startswith(shown)
        held = seen[len(shown) :]
        assert not held or any(s.startswith(held) and s != held for s in strings)


def test_a_scanner_without_strings_holds_nothing_back() -> None:
    scanner = StopScanner([])
    assert (scanner.push("a"), scanner.push(""), scanner.flush(), scanner.matched) == ("a", "", "", False)


@pytest.mark.parametrize(("stop", "strings"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ((), ())])
def test_stop_is_nothing_a_string_or_several(stop: object, strings: tuple[str, ...]) -> None:
    assert stop_strings(stop) == strings


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (5, "stop must be a string or a list of strings, not 5"),
        (b"ab", "stop must be a string or a list of strings, not b'ab'"),
        (["a", 5], "stop must be a string or a list of strings"),
        ({"a"}, "stop must be a string or a list of strings"),
        ("", "stop holds an empty string"),
        (["a", ""], "stop holds an empty string"),
    ],
)
def test_another_stop_is_refused(stop: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        stop_strings(stop)
