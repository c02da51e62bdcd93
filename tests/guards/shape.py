"""Check the size of the source: the number and length of modules, and the size of classes and functions.

`shape_exceptions.txt` lists what is over a limit: the check, its subject, and the value, which must not
grow. Lists and values only shrink. The list is written by `python -m tests.guards.record shape`, which refuses
one with more exceptions of a check than before.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tocsin"
PATH = Path(__file__).parent / "shape_exceptions.txt"

LIMITS = {"modules": 230, "lines": 450, "folder": 30, "parameters": 8, "attributes": 15, "name": 1}
"""The limit of each check: modules in all, lines of a module, modules of a folder, parameters of a function, attributes
of a class, public classes of one name."""

Key = tuple[str, str]
"""The check, and its subject."""


def exceptions(source: Path = SOURCE) -> dict[Key, int]:
    """Return all values over their limit."""
    return {key: value for key, value in measured(source) if value > LIMITS[key[0]]}


def measured(source: Path = SOURCE) -> Iterator[tuple[Key, int]]:
    """Yield all values that have a limit."""
    folders: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        if path.stem != "__init__":
            folders[path.parent.relative_to(source).as_posix()] += 1
        yield ("lines", module), text.count("\n")
        tree = ast.parse(text)
        names.update(node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")
        yield from _sizes(module, tree, kernel="kernels" in path.parts)
    yield ("modules", "tocsin"), folders.total()
    yield from ((("folder", name), number) for name, number in folders.items())
    yield from ((("name", name), number) for name, number in names.items())


def _sizes(prefix: str, tree: ast.AST, *, kernel: bool) -> Iterator[tuple[Key, int]]:
    """Yield the number of parameters of functions, except kernels, and of attributes of classes."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}.{node.name}" if isinstance(node, ast.FunctionDef | ast.ClassDef) else prefix
        if isinstance(node, ast.FunctionDef) and not kernel:
            yield ("parameters", name), _parameters(node)
        if isinstance(node, ast.ClassDef):
            yield ("attributes", name), len(_attributes(node))
        yield from _sizes(name, node, kernel=kernel)


def _parameters(function: ast.FunctionDef) -> int:
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _attributes(kind: ast.ClassDef) -> set[str]:
    """Return the attributes that `__init__` assigns, or the fields of a dataclass."""
    if any("dataclass" in ast.unparse(one) for one in kind.decorator_list):
        fields = [one for one in kind.body if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one)]
        return {one.target.id for one in fields if isinstance(one.target, ast.Name)}
    return {
        node.attr
        for start in kind.body
        if isinstance(start, ast.FunctionDef) and start.name == "__init__"
        for node in ast.walk(start)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def recorded() -> dict[Key, int]:
    """Read the list of exceptions."""
    lines = PATH.read_text(encoding="utf-8").splitlines() if PATH.exists() else []
    split = [line.split() for line in lines]
    return {(check, name): int(value) for check, name, value in split}


def problems(actual: dict[Key, int], allowed: dict[Key, int]) -> list[str]:
    """Describe values over their limit without an exception, and exceptions that are not needed."""
    found = []
    for (check, name), value in sorted(actual.items()):
        limit = allowed.get((check, name), LIMITS[check])
        if value > limit:
            found.append(f"{check} {name}: {value}, the limit is {limit}")
    for check, name in sorted(set(allowed) - set(actual)):
        found.append(f"{check} {name}: the exception is no longer needed; python -m tests.guards.record shape")
    return found


def record() -> None:
    """Rewrite the list, unless it would grow."""
    actual, before = exceptions(), recorded()
    now, then = (Counter(check for check, _ in found) for found in (actual, before))
    grown = [f"{check}: {now[check]} exceptions, before {then[check]}" for check in now if now[check] > then[check]]
    grown += [
        f"{check}: the largest is {largest}, before {limit}"
        for check in now
        if (largest := max(value for key, value in actual.items() if key[0] == check))
        > (limit := max((value for key, value in before.items() if key[0] == check), default=0))
    ]
    if before and grown:
        raise SystemExit("\n".join(["the list only shrinks", *grown]))
    lines = [f"{check} {name} {value}" for (check, name), value in sorted(actual.items())]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"shape: {dict(sorted(now.items()))}")
