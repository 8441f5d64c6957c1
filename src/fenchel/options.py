"""The options of audits, swaps and reproductions, each declared once as a field of a pydantic model.

A field has a type, a rule of :mod:`fenchel.arguments`, a default and its meaning. The argument of the Python function,
the option of the command, the checks of both and the tables of the reference come from it. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, cast

from fenchel.arguments import (
    ARGUMENTS,
    AbstractRule,
    Flag,
    Maybe,
    Number,
    OneOf,
    PathName,
    Text,
    Unfit,
    Whole,
    listed,
    shown,
)
from fenchel.errors import FenchelError, InputError, MissingExtraError
from fenchel.io.shard import Shard
from fenchel.progress import RunObserver, SilentObserver

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
    from pydantic.fields import FieldInfo
    from pydantic_core import ValidationError
except ImportError as error:
    raise MissingExtraError("pydantic", "hf") from error

if TYPE_CHECKING:
    from fenchel.closeness import AbstractCloseness

__all__ = [
    "AuditOptions",
    "CommandOption",
    "DeclaredOption",
    "Options",
    "PairColumns",
    "ReproduceOptions",
    "SwapOptions",
    "declared",
    "takes",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class CommandOption:
    """How the command line names and shows an option.

    Attributes:
        metavar: What stands for its value.
        name: Its name there, where that is another; empty for an option that only Python has.
        default: Its default there, where that is another.
        default_text: The default in words, where it is None.
        unit: What a number of the command line is multiplied by.
        required: Whether it has to be given there.
        recorded: Whether a manifest keeps the option, always or never; None for where it is not the default.
    """

    metavar: str = ""
    name: str | None = None
    default: Any = ...
    default_text: str = ""
    unit: int = 1
    required: bool = False
    recorded: bool | None = None


@dataclass(frozen=True)
class DeclaredOption:
    """A field of a model of options, as it was declared.

    Attributes:
        name: Its name in Python.
        rule: What a value has to be.
        command: How the command line has it.
        field: The field.
    """

    name: str
    rule: AbstractRule
    command: CommandOption
    field: FieldInfo

    @property
    def command_name(self) -> str:
        """Its name on the command line, with underscores."""
        return self.name if self.command.name is None else self.command.name

    @property
    def python_default(self) -> str:
        """Its default in Python, in words; empty where its meaning says it."""
        if self.field.default is not None:
            return repr(self.field.default)
        return self.command.default_text if self.command.default is ... else ""

    @property
    def described(self) -> str:
        """Its meaning and its default in Python."""
        default = self.python_default
        return f"{self.field.description}{f' Default: {default}.' if default else ''}"

    @property
    def command_default(self) -> Any:
        """Its default on the command line."""
        return self.field.default if self.command.default is ... else self.command.default


_PYTHON_ONLY = CommandOption(name="", recorded=False)
_COUNT = 10**9  # of queries or pairs that are read one after the other


@dataclass(frozen=True)
class Numbers(AbstractRule):
    """One number or more, each by one rule."""

    rule: Number

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return "1 to 1,000 numbers above 0 that float32 can hold, such as 0.5, 0.8, 1.2"

    def fit(self, value: Any) -> tuple[float, ...]:
        """See ``AbstractRule``."""
        return tuple(self.rule.member(one) for one in listed(value, 1000))


@dataclass(frozen=True)
class SomeOf(AbstractRule):
    """One or more of a few names, each taken once, in the order in which they are given."""

    names: tuple[str, ...]

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"some of {', '.join(self.names)}"

    def fit(self, value: Any) -> tuple[str, ...]:
        """See ``AbstractRule``."""
        found = dict.fromkeys(listed(value, 1000, hashable=True))
        for name in found:
            if name not in self.names:
                raise Unfit(f"names {shown(name)}")
        return tuple(found)


@dataclass(frozen=True)
class _Made(AbstractRule):
    """What a function makes of a value; its own error says what is wrong."""

    make: Callable[[Any], Any]
    words: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return self.words

    def fit(self, value: Any) -> Any:
        """See ``AbstractRule``."""
        return self.make(value)


def _observer(value: Any) -> Any:
    methods = ("started", "advanced", "finished")
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
        raise Unfit
    return value


def _closeness(value: Any) -> str | None:
    from fenchel.closeness.tsallis import closeness_name

    return closeness_name(value)


def _columns(value: Any) -> PairColumns:
    if not isinstance(value, PairColumns):
        raise Unfit
    return value


_OBSERVER = Maybe(_Made(_observer, "an object with the methods started, advanced, finished"))
_ALPHAS = Numbers(Number("0.8", above=0.0, in_float32=True))
_SPACES = OneOf(("input", "key"))
_REVISION = Maybe(Text("a branch, tag or commit, such as main"))
_RESAMPLES = Whole(100, 100_000, "2000", "of resamples")


class Options(BaseModel):
    """Options that are checked once; a wrong one raises :class:`fenchel.errors.InputError`, which names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def checked(cls, _names: dict[str, str] | None = None, /, **given: Any) -> Self:
        """The options as they were given.

        Args:
            _names: What messages call an option, where that is not its name.
            **given: The options by name.

        Raises:
            InputError: If one cannot be meant.
            TypeError: If there is no option of a name.
        """
        try:
            return cls.model_validate(given, context=_names)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "extra_forbidden":
                known = ", ".join(option.name for option in declared(cls))
                raise TypeError(f"there is no option {first['loc'][0]!r}; expected one of {known}.") from None
            raised = first.get("ctx", {}).get("error")
            raise (raised if isinstance(raised, FenchelError) else InputError(str(error))) from None

    @field_validator("*", mode="plain")
    @classmethod
    def _by_rule(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        rule = _option(name, cls.model_fields[name]).rule
        return rule.check((info.context or {}).get(name, name.replace("_", " ")), value)


def declared(model: type[Options]) -> Iterator[DeclaredOption]:
    """The options of a model, in its order."""
    for name, field in model.model_fields.items():
        yield _option(name, field)


def _option(name: str, field: FieldInfo) -> DeclaredOption:
    rule = next((one for one in field.metadata if isinstance(one, AbstractRule)), None)
    if rule is None:
        rule = Flag() if field.annotation is bool else ARGUMENTS[name]
    command = next((one for one in field.metadata if isinstance(one, CommandOption)), CommandOption())
    return DeclaredOption(name, rule, command, field)


def takes(model: type[Options]) -> Callable[[_Function], _Function]:
    """Gives a function that ends in ``**options`` the signature and the documentation of a model's options.

    Args:
        model: The options. The line ``**options:`` of the function's docstring becomes a line for each of them.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.field.default,
                annotation=option.field.annotation,
            )
            for option in declared(model)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # pyright: ignore[reportFunctionMemberAccess]
        function.__options__ = model  # pyright: ignore[reportFunctionMemberAccess]
        described = "\n".join(f"        {one.name}: {one.described}" for one in declared(model))
        # Python's option -OO leaves no docstrings.
        function.__doc__ = (
            re.sub(r"(?m)^ *\*\*options:.*$", lambda _: described, function.__doc__ or "") or None
        )
        return function

    return decorate


@dataclass(frozen=True)
class PairColumns:
    """The columns of a table of pairs, by the names in its first line.

    Attributes:
        first: Of the one sentence.
        second: Of the other.
        score: Of their similarity.
    """

    first: str = "sentence_A"
    second: str = "sentence_B"
    score: str = "relatedness_score"

    def __post_init__(self) -> None:
        for name in ("first", "second", "score"):
            Text("the name of a column, such as sentence_A").check(f"{name} column", getattr(self, name))


_COLUMNS = _Made(_columns, "fenchel.swap.PairColumns(first, second, score)")


class ReadingOptions(Options):
    """How texts are read, and where results are written: what audits, swaps and reproductions share."""

    whole_file: Annotated[bool, CommandOption()] = Field(
        False, description="Take a plain text file for one document, not one a line."
    )
    text_column: Annotated[str | None, CommandOption("NAME", default_text="text")] = Field(
        None, description="Column of the texts in a table."
    )
    target_column: Annotated[str | None, CommandOption("NAME", default_text="the text itself")] = Field(
        None, description="Column of what an encoder-decoder model is to write for each text."
    )
    max_tokens: Annotated[int | None, CommandOption("N", default_text="no limit", recorded=True)] = Field(
        None,
        description="Stop after N tokens of the text, shards included; batches of a loader are read whole.",
    )
    batch_size: Annotated[int, CommandOption("N", recorded=False)] = Field(
        8, description="Windows, or single sentences, in a batch."
    )
    max_length: Annotated[
        int | None, CommandOption("N", default_text="what the model takes, at most 512", recorded=False)
    ] = Field(None, description="Tokens in a window, special ones included.")
    stride: Annotated[int | None, CommandOption("N", default_text="no overlap", recorded=False)] = Field(
        None, description="Tokens from one window's start to the next; shared ones count once."
    )
    device: Annotated[
        str | None,
        CommandOption("NAME", default=None, default_text="cuda if there is one, else cpu", recorded=False),
    ] = Field(
        None,
        description="Where to run, such as cpu or cuda:1. In Python a loaded model stays where it is by default, and a "
        "named one runs on the cpu.",
    )
    dtype: Annotated[
        Any, CommandOption("NAME", default="float32", recorded=False), Maybe(ARGUMENTS["dtype"])
    ] = Field(
        None,
        description="What the model computes in: float32, float64, bfloat16, float16, or auto for what it was "
        "saved in. In Python a loaded model stays as it is by default, and a named one is in float32.",
    )
    revision: Annotated[
        str | None,
        CommandOption("NAME", default_text="the default branch", recorded=False),
        _REVISION,
    ] = Field(None, description="Branch, tag or commit of a model on the hub.")
    seed: Annotated[int, CommandOption("N", recorded=True)] = Field(
        0, description="Seed of everything that is drawn at random."
    )
    observer: Annotated[Any, _PYTHON_ONLY, _OBSERVER] = Field(
        None, description="Who is told about the progress."
    )
    directory: Annotated[Path | None, CommandOption("DIR", name="out", required=True, recorded=False)] = (
        Field(None, description="Folder for the results; made if needed.")
    )
    resume: Annotated[bool, CommandOption(recorded=False)] = Field(
        False, description="Go on with the run in the folder, or begin one; keep a finished one."
    )
    overwrite: Annotated[bool, CommandOption(recorded=False)] = Field(
        False, description="Start anew, whatever run the folder holds."
    )
    checkpoint_seconds: Annotated[float, CommandOption("S", recorded=False)] = Field(
        60.0, description="Save for a resumed run at most once in S seconds."
    )

    @property
    def told(self) -> RunObserver[Any]:
        """Who is told about the progress."""
        return self.observer or SilentObserver()

    @property
    def of_text(self) -> dict[str, Any]:
        """How texts are read."""
        return self.model_dump(include={"whole_file", "text_column", "target_column"})

    @property
    def recorded(self) -> dict[str, Any]:
        """What a manifest keeps of the options, and a resumed run has to agree with: JSON values."""
        found: dict[str, Any] = {}
        for option in declared(type(self)):
            value, kept = getattr(self, option.name), option.command.recorded
            if kept or (kept is None and value != option.field.default):
                found[option.name] = list(value) if isinstance(value, tuple) else value
        return found

    def refuse_options_of_text(self, read: str, *besides: str) -> None:
        """Refuse options that say how texts are read, where something else is.

        Args:
            read: What is.
            *besides: Names of further options of texts.

        Raises:
            InputError: Naming the first.
        """
        own = ("max_length", "stride", *besides, *self.of_text)
        for name in own:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise InputError(
                    f"{name.replace('_', ' ')} is an option of texts, and {read} given. Leave it out."
                )

    @model_validator(mode="after")
    def _with_a_folder(self) -> Self:
        names = [name for name in ("resume", "overwrite", "keep_queries") if name in type(self).model_fields]
        if self.directory is None and any(getattr(self, name) for name in names):
            raise InputError(
                f"{', '.join(names[:-1])} and {names[-1]} are about files, but no directory was given for any."
            )
        return self


class SourceOptions(ReadingOptions):
    """What can be read in the place of a text."""

    images: Annotated[
        Path | None, CommandOption("FOLDER", recorded=False), Maybe(PathName("a folder of images"))
    ] = Field(
        None, description="In the place of a text, for a vision model: a folder of images, or one image."
    )
    loader: Annotated[Path | None, CommandOption("FILE", recorded=False)] = Field(
        None,
        description="In the place of a text, for the folder of a run: a Python file whose load(folder) gives the model "
        "and its batches. It is run.",
    )


class AuditOptions(SourceOptions):
    """The options of :func:`fenchel.audit`."""

    queries: Annotated[int | None, CommandOption("N", default_text="all"), Maybe(Whole(1, _COUNT, "32"))] = (
        Field(None, description="Measure a seeded sample of N queries of each window, with standard errors.")
    )
    layers: Annotated[
        tuple[int, ...] | None, CommandOption("LIST", default_text="all", recorded=True), ARGUMENTS["heads"]
    ] = Field(None, description="Only these layers, from 1 within each kind of attention, such as 1,3-5.")
    heads: Annotated[tuple[int, ...] | None, CommandOption("LIST", default_text="all", recorded=True)] = (
        Field(None, description="Only these heads, from 1, such as 1,3-5.")
    )
    space: Annotated[
        Literal["input", "key"],
        CommandOption(default_text="input, and key with a loader", recorded=True),
        _SPACES,
    ] = Field(
        cast("Any", None),
        description="Templates: the inputs of the key map, as in the papers, or the keys, which works for every model.",
    )
    closeness: Annotated[
        Any,
        CommandOption("NAME", default_text="softmax"),
        _Made(_closeness, "the name of a closeness"),
    ] = Field(None, description="For models that attend so: tsallis:ORDER, sparsemax or entmax15.")
    even_so: Annotated[bool, CommandOption(recorded=False)] = Field(
        False, description="Measure under another closeness a model that attends otherwise."
    )
    alpha: Annotated[float, CommandOption("X", recorded=True)] = Field(
        1.0, description="Reliability of the evidence, above 0."
    )
    tol: Annotated[float, CommandOption("X", recorded=True)] = Field(
        2e-4, description="Relative tolerance of the exact solver."
    )
    memory_budget: Annotated[int, CommandOption("MB", default=512, unit=2**20, recorded=False)] = Field(
        512 * 2**20,
        description="Working memory of the exact solver: bytes in Python, megabytes on the command line.",
    )
    baseline: Annotated[
        Literal["auto", "twin", "none"] | None,
        CommandOption(default="auto", recorded=False),
        Maybe(OneOf(("auto", "twin", "none"))),
    ] = Field(
        None,
        description="Audit the model's untrained twin beside it: if that takes less than a minute (auto), in any case "
        "(twin), or not (none). By default auto where a report is written, else none.",
    )
    shard: Annotated[
        Shard,
        CommandOption("I/N", default=None, default_text="RANK/WORLD_SIZE, else 0/1", recorded=False),
        _Made(Shard.of, "a share, such as (0, 4)"),
    ] = Field(Shard(), description="Audit share I (from 0) of the N of the documents.")
    keep_queries: Annotated[bool, CommandOption(recorded=False)] = Field(
        False, description="Also write every query, to queries-*.parquet."
    )

    @model_validator(mode="before")
    @classmethod
    def _with_a_space(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("space") is not None:
            return given
        return {**given, "space": "input" if given.get("loader") is None else "key"}

    @property
    def measured_closeness(self) -> AbstractCloseness | None:
        """D, or None for softmax."""
        from fenchel.closeness.tsallis import closeness_named

        return closeness_named(self.closeness)

    @property
    def folder(self) -> Path | None:
        """Where this shard's files go: the folder itself where there is only one shard."""
        if self.directory is None or self.shard.count == 1:
            return self.directory
        return self.directory / f"shard-{self.shard.index}-of-{self.shard.count}"

    @property
    def control(self) -> str:
        """The baseline: by default the twin if a report is written and it takes less than a minute."""
        return self.baseline or ("none" if self.directory is None else "auto")


class SwapOptions(SourceOptions):
    """The options of :func:`fenchel.swap.swap`."""

    estimators: Annotated[
        tuple[str, ...], CommandOption("LIST", recorded=True), SomeOf(("second_order", "exact"))
    ] = Field(("second_order", "exact"), description="What to swap in, of second_order and exact.")
    alphas: Annotated[
        tuple[float, ...],
        CommandOption("LIST", recorded=True),
        _ALPHAS,
    ] = Field(
        (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3), description="The alphas of the control, first order."
    )
    per_layer: Annotated[bool, CommandOption(recorded=True)] = Field(
        False, description="Also swap one layer at a time, with every control."
    )
    per_head: Annotated[bool, CommandOption(recorded=True)] = Field(
        False, description="Also swap one head at a time, with three controls."
    )
    layers: Annotated[
        tuple[int, ...] | None, CommandOption("LIST", default_text="all", recorded=True), ARGUMENTS["heads"]
    ] = Field(
        None,
        description="Only these layers, from 1 in the order of the model's attention modules, such as 1,3-5.",
    )
    heads: Annotated[tuple[int, ...] | None, CommandOption("LIST", default_text="all", recorded=True)] = (
        Field(None, description="Only these heads, from 1, such as 1,3-5.")
    )
    max_pairs: Annotated[
        int | None, CommandOption("N", default_text="all", recorded=False), Maybe(Whole(3, _COUNT, "1000"))
    ] = Field(None, description="Take only the first N of the scored pairs.")
    sample_pairs: Annotated[int, CommandOption("N", recorded=False)] = Field(
        10_000, description="Pairs of texts whose similarities are ranked, at most."
    )
    mask_probability: Annotated[
        float, CommandOption("X", recorded=False), Number("0.15", above=0.0, below=1.0)
    ] = Field(0.15, description="Share of tokens hidden from a masked language model.")
    bootstrap: Annotated[int, CommandOption("N", recorded=True), _RESAMPLES] = Field(
        2000, description="Resamples for the intervals."
    )
    tol: Annotated[
        float | None,
        CommandOption("X", default_text="1e-5, in float64 1e-10", recorded=True),
        Maybe(ARGUMENTS["tol"]),
    ] = Field(None, description="Relative tolerance of the exact estimator.")
    columns: Annotated[PairColumns, _PYTHON_ONLY, _COLUMNS] = Field(
        PairColumns(), description="Names of the columns of a table of pairs, a fenchel.swap.PairColumns."
    )

    @field_validator("estimators", mode="before")
    @classmethod
    def _others(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and "first_order" in value:
            raise InputError(
                "estimators names first_order, which is the model itself. It is measured anyway, and at other alphas "
                "as the control; give some of second_order, exact."
            )
        return value

    @field_validator("alphas", mode="after")
    @classmethod
    def _with_a_control(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not set(value) - {1.0}:
            raise InputError(
                f"alphas is {list(value)}; expected at least one that is not 1. Without a control nothing tells a "
                "better estimator from a softer attention."
            )
        return tuple(sorted(set(value)))


class ReproduceOptions(ReadingOptions):
    """The options of :func:`fenchel.reproducing.reproduce`."""

    model: Annotated[
        Any, CommandOption("MODEL", default_text="the papers' own"), Maybe(ARGUMENTS["model_name"])
    ] = Field(None, description="Hub name, local folder, or demo.")
    tol: Annotated[float, CommandOption("X", recorded=True)] = Field(
        2e-5, description="Relative tolerance of the exact solver."
    )
    directory: Annotated[
        Path | None, CommandOption("DIR", name="out", default="reproduce", recorded=False)
    ] = Field(None, description="Folder for the results; made if needed.")
