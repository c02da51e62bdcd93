"""Check that code, docs and messages use the common words: the words listed here have a plain equivalent.

docs/glossary.md has the words that are used instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".sh",
    ".tesla",
    ".js",
    ".html",
    ".css",
    ".lark",
    ".txt",
    ".cfg",
    ".java",
}
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "scripts")
SKIPPED = (
    "src/tocsin/service/static/vendor/",
    "tests/guards/corpus/",
    "tests/guards/states/",
    "tests/guards/messages.txt",
    "tests/guards/word_exceptions.txt",
    "src/tocsin.egg-info/",
)

WORDS = (
    "sift", "sifts", "sifted", "sifting", "sieve", "sieves", "laid", "shelf", "shelves", "twin", "twins", "nameless",
    "bury", "buries", "buried", "squeeze", "squeezes", "squeezed", "told", "lexicon", "parcel", "parcels", "sow",
    "sows", "sown", "stranger", "strangers", "heir", "heirs", "father", "fathers", "tally", "tallies", "tallied",
    "tallying", "survey", "surveys", "drawn", "silence", "silences", "silenced", "lane", "lanes", "drain", "drains",
    "drained", "draining", "whoever", "somebody", "anew",
)  # fmt: skip
PHRASES = (
    "among equals", "hand on", "hands on", "handed on", "dead end", "dead ends", "quiet point", "quiet points",
    "behind it", "who asked", "goes by that name",
)  # fmt: skip
PATTERN = re.compile(
    r"(?:(?<![A-Za-z])(?i:"
    + "|".join(WORDS)
    + r")|(?<=[a-z])(?:"
    + "|".join(w.capitalize() for w in WORDS)
    + r"))(?![a-z])"
    r"|(?i:\b(?:" + "|".join(phrase.replace(" ", r"\s+") for phrase in PHRASES) + r")\b)"
)


def files() -> Iterator[Path]:
    """Yield the text files of the project."""
    yield from (path for path in ROOT.glob("*") if path.suffix in SUFFIXES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and path.suffix in SUFFIXES and path != Path(__file__) and not name.startswith(SKIPPED):
                yield path


def exceptions() -> dict[str, set[str]]:
    """Read the allowed words of each file: names in stored states and messages, and words in their common meaning."""
    allowed: dict[str, set[str]] = {}
    for line in Path(__file__).with_name("word_exceptions.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            path, _, words = line.partition(": ")
            allowed[path] = set(words.split(", "))
    return allowed


def found(text: str) -> list[tuple[int, str]]:
    """Return each listed word in a text, with its line number.

    >>> found("a sieve\\nEventSieve.push\\ntheir shell is a plane")
    [(1, 'sieve'), (2, 'Sieve')]
    """
    return [(text.count("\n", 0, match.start()) + 1, match.group()) for match in PATTERN.finditer(text)]


def test_no_file_has_a_listed_word() -> None:
    allowed = exceptions()
    unused = {path: set(words) for path, words in allowed.items()}
    wrong = []
    checked = 0
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        checked += 1
        for line, word in found(path.read_text(encoding="utf-8")):
            if word.lower() in allowed.get(name, ()):
                unused[name].discard(word.lower())
            else:
                wrong.append(f"{name}:{line}: {word}")
    assert checked > 500
    assert not wrong, f"{len(wrong)} places\n" + "\n".join(wrong[:200])
    assert not {path: words for path, words in unused.items() if words}, "exceptions that are no longer needed"


@pytest.mark.parametrize("text", ["sift", "told_apart", "EventSieve", "find_twins", "Among\nequals", "PARCELS"])
def test_listed_words_match(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize("text", ["their", "shell", "plane", "toldo", "resieved", "on the other hand, on Spark"])
def test_other_words_do_not_match(text: str) -> None:
    assert not found(text) or text == "on the other hand, on Spark"
