"""A model's options as ``--set KEY=VALUE`` gives them: which there are, what they mean, and what was written."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fenchel.arguments import shown
from fenchel.errors import InputError
from fenchel.train.options import LoopOptions

__all__ = ["Setting", "parsed_settings", "settings_of"]

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)
_TRUTH = {"yes": True, "true": True, "no": False, "false": False}
_NOTHING = "none"


@dataclass(frozen=True)
class Setting:
    """An option of a training.

    Attributes:
        name: As Python and ``--set`` call it.
        kind: ``int``, ``float``, ``str`` or ``bool``.
        optional: Whether ``none`` can be given.
        default: What it is where nothing is said.
        meaning: What the documentation of the options says of it.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    meaning: str

    def parsed(self, text: str) -> Any:
        """What was written, as the option takes it.

        Args:
            text: What stands behind the sign of equality.

        Raises:
            InputError: If it is of another kind.

        Example:
            >>> Setting("depth", int, True, 2, "").parsed("3"), Setting("tied", bool, False, True, "").parsed("no")
            (3, False)
        """
        if self.optional and text == _NOTHING:
            return None
        if self.kind is bool:
            if text in _TRUTH:
                return _TRUTH[text]
            raise InputError(f"--set {self.name} is {shown(text)}; expected yes or no.")
        try:
            return self.kind(text)
        except ValueError:
            expected = {int: "a whole number", float: "a number"}[self.kind]
            raise InputError(f"--set {self.name} is {shown(text)}; expected {expected}.") from None

    @property
    def written_default(self) -> str:
        """Its default as it would be written; empty if there is none."""
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        return _NOTHING if self.default is None else str(self.default)

    @property
    def help(self) -> str:
        """What it means, with its default."""
        default = self.written_default
        return f"{self.meaning}  [{f'default: {default}' if default else 'required'}]"


def settings_of(
    kind: type[LoopOptions], *, without: Sequence[str] = (), model: str | None = None
) -> dict[str, Setting]:
    """The options of a training by name.

    Args:
        kind: Of a task.
        without: Names that are left out, since a command has an option of its own for them.
        model: One of the task's models, whose defaults are wanted with what it fills in where nothing is said; None
            for the defaults as they are declared, some of which leave that open.

    Example:
        >>> settings_of(LoopOptions)["epochs"].help
        'How often every example is seen.  [default: 20]'
    """
    hints = typing.get_type_hints(kind)
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        meanings.update(_meanings(inspect.cleandoc(base.__dict__.get("__doc__") or "")))
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(kind):
        if field.name in without:
            continue
        of, optional = _plain(hints[field.name])
        default = None if field.default is dataclasses.MISSING else field.default
        found[field.name] = Setting(field.name, of, optional, default, meanings.get(field.name, ""))
    if model is None:
        return found
    filled = _filled(kind, model)
    return {
        name: one
        if one.default == "" or name not in filled
        else dataclasses.replace(one, default=filled[name])
        for name, one in found.items()
    }


def parsed_settings(written: Sequence[str], known: dict[str, Setting]) -> dict[str, Any]:
    """What was written behind ``--set``, by name.

    Args:
        written: ``KEY=VALUE`` each; of one that is there twice the last counts.
        known: What can be set.

    Raises:
        InputError: If one is no such assignment, or there is no such option.
    """
    values: dict[str, Any] = {}
    for one in written:
        name, sign, text = one.partition("=")
        if not sign or name not in known:
            if not known:
                raise InputError(f"--set {shown(one)}: this model has no other options. Leave it out.")
            raise InputError(f"--set {shown(one)}; expected KEY=VALUE with a KEY of {', '.join(known)}.")
        values[name] = known[name].parsed(text)
    return values


def _filled(kind: type[LoopOptions], model: str) -> dict[str, Any]:
    """The options of a model that nothing is said of, but for those that have to be said."""
    said: dict[str, Any] = {
        field.name: "RUN" if field.default == "" else "DATA"
        for field in dataclasses.fields(kind)
        if field.default in ("", dataclasses.MISSING)
    }
    filled = dataclasses.asdict(kind(**{**said, "model": model}).resolved())
    return {name: value for name, value in filled.items() if name not in said}


def _meanings(documentation: str) -> dict[str, str]:
    _, _, attributes = documentation.partition("Attributes:\n")
    return {
        name: " ".join(text.replace("``", "").split())
        for name, text in _ATTRIBUTE.findall(attributes.partition("\n\n")[0])
    }


def _plain(hint: Any) -> tuple[type, bool]:
    """The type without None, and whether None was among them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        return parts[0], True
    return hint, False
