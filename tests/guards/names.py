"""The public names of Tocsin as text: modules with their classes and functions, and the commands with their options."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tests.guards.internals import commands

MODULES = (
    "tocsin",
    "tocsin.spark",
    "tocsin.spark.sinks",
    "tocsin.spark.kafka",
    "tocsin.testing",
    "tocsin.client",
    "tocsin.language.builder",
    "tocsin.errors",
)
SHOWN_SPECIAL = ("__call__", "__enter__", "__exit__", "__iter__", "__len__")


def public_names() -> str:
    """Return all public names, one per line."""
    lines: list[str] = []
    for name in MODULES:
        lines += [f"module {name}", *(f"    {line}" for line in _module(name)), ""]
    for command, flags in commands():
        lines += [f"command {command}", *(f"    {flag}" for flag in flags), ""]
    return "\n".join(lines)


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in sorted(getattr(module, "__all__", None) or _defined(module)):
        value = getattr(module, public)
        if inspect.isclass(value):
            yield f"class {public}{_bases(value)}{'' if _is_plain(value) else _signature(value)}"
            yield from (f"    {line}" for line in _class(value))
        elif inspect.isfunction(value):
            yield f"{public}{_signature(value)}"
        else:
            yield f"{public}: {type(value).__name__}"


def _defined(module: Any) -> Iterator[str]:
    """Yield the public names that a module without `__all__` defines itself."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (name for name in names if name[0] != "_" and hasattr(module, name))


def _is_plain(kind: type) -> bool:
    return issubclass(kind, enum.Enum) or (issubclass(kind, Exception) and "__init__" not in vars(kind))


def _bases(kind: type) -> str:
    names = [base.__name__ for base in kind.__bases__ if base is not object]
    return f"[{', '.join(names)}]" if names else ""


def _class(kind: type) -> list[str]:
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("tocsin"):
            continue
        for name in _assigned(base):
            found[name] = name
        if dataclasses.is_dataclass(base):
            for field in dataclasses.fields(base):
                found[field.name] = f"{field.name}: {_text(field.type)}"
        for name, value in vars(base).items():
            if name in SHOWN_SPECIAL or name[0] != "_":
                found[name] = _member(kind, name, value)
    return [found[name] for name in sorted(found) if name[0] != "_" or name in SHOWN_SPECIAL]


def _member(kind: type, name: str, value: Any) -> str:
    if isinstance(value, property):
        result = inspect.signature(value.fget).return_annotation if value.fget else inspect.Signature.empty
        return f"{name} -> {_text(result)}"
    if isinstance(value, staticmethod | classmethod):
        return f"{type(value).__name__} {name}{_signature(value.__func__)}"
    if inspect.isfunction(value):
        return f"{name}{_signature(value)}"
    if isinstance(value, enum.Enum):
        return f"{name} = {value.value!r}"
    annotation = vars(kind).get("__annotations__", {}).get(name)
    return name if annotation is None else f"{name}: {_text(annotation)}"


def _assigned(kind: type) -> Iterator[str]:
    """Yield the attributes that `__init__` assigns to `self`."""
    start = vars(kind).get("__init__")
    if not inspect.isfunction(start) or dataclasses.is_dataclass(kind):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(start)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _signature(value: Any) -> str:
    found = inspect.signature(value)
    parameters = [
        one.replace(default=_Shown(one.default)) if one.default is not inspect.Parameter.empty else one
        for one in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters))


class _Shown:
    """A default value, printed without its address."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        text = repr(self._value)
        return f"<{type(self._value).__name__}>" if " at 0x" in text else text


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
