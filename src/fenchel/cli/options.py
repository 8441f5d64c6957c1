"""Options of commands from models of options, and lists of numbers as people type them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import typer

from fenchel.arguments import MOST_LAYERS, shown
from fenchel.options import Option, Options, declared

__all__ = ["decimals", "numbers", "with_options"]

# Nine digits are more than any layer's number has, and few enough to be read as a number.
_PART = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")


def with_options(model: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a model, in the place of its argument ``options``.

    Args:
        model: The options. The command is called with one of them, checked.
    """
    on_command = {one.command_name: one for one in declared(model) if one.command_name}
    names = {one.name: name.replace("_", " ") for name, one in on_command.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            options = {one.name: _read(one, given.pop(name)) for name, one in on_command.items()}
            asked = {name: value for name, value in options.items() if value is not None}
            command(**given, options=model.checked(names, **asked))

        own = [
            one
            for name, one in inspect.signature(command, eval_str=True).parameters.items()
            if name != "options"
        ]
        parameters = [
            *(one.replace(kind=one.KEYWORD_ONLY) for one in own),
            *(_parameter(name, one) for name, one in on_command.items()),
        ]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(name: str, option: Option) -> inspect.Parameter:
    """An option as typer reads it from a signature."""
    kind = option.rule.kind
    default = option.default if option.command_default is ... else option.command_default
    if isinstance(kind, tuple) and int not in kind:
        kind = Literal[kind]
    elif kind not in (bool, int, float):
        kind = str
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    said = f"  [default: {option.default_text}]" if option.default_text and default is None else ""
    described = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=option.metavar or "|".join(get_args(kind)) or None,
        help=f"{option.meaning}{said}",
        show_default=default is not None and kind is not bool,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=Annotated[kind if option.required or kind is bool else kind | None, described],
    )


def _read(option: Option, value: Any) -> Any:
    """A value of the command line as Python takes it."""
    name, kind = f"--{option.command_name.replace('_', '-')}", option.rule.kind
    if value is None:
        return None
    if isinstance(kind, tuple) and int in kind and value not in kind:
        try:
            return int(value)
        except ValueError as error:
            names = " or ".join(one for one in kind if isinstance(one, str))
            raise typer.BadParameter(
                f"{shown(value)} is not a whole number, nor {names}.", param_hint=name
            ) from error
    if kind == list[int]:
        return numbers(value, name, MOST_LAYERS)
    if kind == list[float]:
        return decimals(value, name)
    if kind == list[str]:
        return [one.strip() for one in value.split(",")]
    return value if option.unit == 1 else value * option.unit


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
