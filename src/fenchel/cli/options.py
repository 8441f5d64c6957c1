"""Options of commands from models of options, and lists of numbers as people type them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import typer

from fenchel.arguments import Flag, Maybe, Number, NumbersFromOne, Whole, shown
from fenchel.options import DeclaredOption, Numbers, Options, SomeOf, declared

__all__ = ["decimals", "numbers", "with_options"]

# Nine digits are more than any layer's number has, and few enough to be read as a number.
_PART = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")


def with_options(model: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a model, in the place of its argument ``options``.

    Args:
        model: The options. The command is called with one of them, checked.
    """
    names = {one.name: one.command_name.replace("_", " ") for one in declared(model)}
    on_command = [one for one in declared(model) if one.command_name]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            options = {one.name: _read(one, given.pop(one.command_name)) for one in on_command}
            asked = {name: value for name, value in options.items() if value is not None}
            command(**given, options=model.checked(names, **asked))

        own = [
            one
            for name, one in inspect.signature(command, eval_str=True).parameters.items()
            if name != "options"
        ]
        parameters = [
            *(one.replace(kind=one.KEYWORD_ONLY) for one in own),
            *(_parameter(one) for one in on_command),
        ]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(option: DeclaredOption) -> inspect.Parameter:
    """An option as typer reads it from a signature."""
    words, kind, required = option.command, _kind(option), option.command.required
    default = option.command_default
    if isinstance(default, tuple):
        default = ",".join(str(one) for one in default)
    said = f"  [default: {words.default_text}]" if words.default_text and default is None else ""
    described = typer.Option(
        f"--{option.command_name.replace('_', '-')}",
        metavar=words.metavar or "|".join(get_args(kind)) or None,
        help=f"{option.field.description}{said}",
        show_default=default is not None and kind is not bool,
    )
    return inspect.Parameter(
        option.command_name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind if required or kind is bool else kind | None, described],
    )


def _kind(option: DeclaredOption) -> Any:
    rule = option.rule.rule if isinstance(option.rule, Maybe) else option.rule
    for kind, found in ((Flag, bool), (Whole, int), (Number, float)):
        if isinstance(rule, kind):
            return found
    names = getattr(rule, "names", None)
    return Literal[names] if names and not isinstance(rule, SomeOf) else str


def _read(option: DeclaredOption, value: Any) -> Any:
    """A value of the command line as Python takes it."""
    rule, name = option.rule, f"--{option.command_name.replace('_', '-')}"
    if value is None:
        return None
    if isinstance(rule, NumbersFromOne):
        return numbers(value, name, rule.most)
    if isinstance(rule, Numbers):
        return decimals(value, name)
    if isinstance(rule, SomeOf):
        return [one.strip() for one in value.split(",")]
    return value if option.command.unit == 1 else value * option.command.unit


def numbers(text: str, option: str, most: int) -> list[int]:
    """Reads numbers and ranges, separated by commas.

    Args:
        text: Such as ``1,3-5``.
        option: Where it was given, for the message.
        most: The largest number.

    Returns:
        The numbers in order, each once.

    Raises:
        typer.BadParameter: If the text is anything else.

    Example:
        >>> numbers("7,1,3-5,4", "--layers", 100)
        [1, 3, 4, 5, 7]
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise typer.BadParameter(
                f"{shown(text)} is not a list of numbers and ranges, such as 1,3-5.", param_hint=option
            )
        if last > most:
            raise typer.BadParameter(
                f"{shown(text)} goes up to {last:,}; expected numbers from 1 to {most:,}.", param_hint=option
            )
        found.update(range(first, last + 1))
    return sorted(found)


def decimals(text: str, option: str) -> list[float]:
    """Reads decimal numbers, separated by commas.

    Args:
        text: Such as ``0.5,0.8``.
        option: Where it was given, for the message.

    Returns:
        The numbers, as they come.

    Raises:
        typer.BadParameter: If the text is anything else.

    Example:
        >>> decimals("0.5, 0.8,1", "--alphas")
        [0.5, 0.8, 1.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{shown(text)} is not a list of numbers, such as 0.5,0.8.", param_hint=option
        ) from None
