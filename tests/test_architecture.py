"""ARCHITECTURE.md names modules and functions that exist, and every package."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tocsin"
TEXT = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))
PACKAGES = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {path.stem for path in SOURCE.glob("*.py")}
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*:[A-Za-z_.]+|[a-z_]+(?:/[a-z_]+)+)`", TEXT)))
INPUTS = 7


def modules() -> list[str]:
    return [name for name in NAMED if name.split("/")[0].split(":")[0] in PACKAGES - {"__init__"}]


@pytest.mark.parametrize("name", modules())
def test_what_is_named_exists(name: str) -> None:
    path, _, function = name.partition(":")
    assert (SOURCE / f"{path}.py").exists() or (SOURCE / path / "__init__.py").exists(), path
    if function:
        found = import_module("tocsin." + path.replace("/", ".").removesuffix(".__init__"))
        for part in function.split("."):
            found = getattr(found, part)


def test_many_functions_are_named() -> None:
    assert len([name for name in modules() if ":" in name]) > 50


def test_every_package_stands_in_the_picture() -> None:
    picture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    assert {name for name in PACKAGES - {"__init__"} if not re.search(rf"\b{name}\b", picture)} == set()


def test_each_kind_of_input_has_its_path() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### (?:An|One|A) (?!host)", text, re.MULTILINE)) == INPUTS
