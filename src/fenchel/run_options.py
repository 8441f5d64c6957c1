"""Options of audits, swaps and reproductions, each declared once as a field of a pydantic model.

A field has a type, a rule of :mod:`fenchel.arguments`, a default and a description. The argument of the Python
function, the option of the command, their checks and the tables of the reference are made from it. Nothing here imports
torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from fenchel.arguments import (
    ARGUMENTS,
    FLAG,
    InvalidValue,
    Rule,
    listed,
    maybe,
    number,
    numbers,
    of_type,
    one_of,
    shown,
    some_of,
    text,
    where,
    whole,
)
from fenchel.errors import InputError, MissingExtraError
from fenchel.io.runs import WHOLE, RunObserver, Shard, SilentObserver

try:
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise MissingExtraError("pydantic", "hf") from error

if TYPE_CHECKING:
    from fenchel.closeness import AbstractCloseness

# Ablations of a head's output: zero, its mean over the text, equal weights on all visible keys, and the weights of the
# preference alone (z = 0).
ABLATIONS = ("zero", "mean", "uniform", "preference")

# Options of texts besides those with which they are opened.
_OF_TEXT = ("max_length", "stride", "sample_pairs", "mask_probability", "columns")

_PLACEHOLDERS = {int: "N", float: "X", list[int]: "LIST", list[float]: "LIST", list[str]: "LIST"}

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """The declaration of an option.

    Attributes:
        default: Default in Python.
        meaning: Description.
        metavar: Placeholder of its value on the command line; empty for that of its type.
        own_rule: Rule of its values; None for the rule of ``ARGUMENTS`` with its name, or of flags. If the default is
            None, a value may be None as well.
        name: Name in Python.
        command: Name on the command line, if another; empty if it is in Python only.
        command_default: Default on the command line; ``...`` for the same.
        default_text: Description of a default that is None.
        in_unit: Converts a number of the command line that is in another unit.
        required: Whether it is required on the command line.
        recorded: Whether it is kept in the manifest: always, never, or (None) if it is not the default.
        hidden: Whether the command accepts it without listing it in its help.
    """

    default: Any
    meaning: str
    metavar: str = ""
    own_rule: Rule | None = None
    name: str = ""
    command: str | None = None
    command_default: Any = ...
    default_text: str = ""
    in_unit: Callable[[Any], Any] | None = None
    required: bool = False
    recorded: bool | None = False
    hidden: bool = False

    @property
    def rule(self) -> Rule:
        """The rule of its values."""
        rule = self.own_rule or (FLAG if isinstance(self.default, bool) else ARGUMENTS[self.name])
        return maybe(rule) if self.default is None else rule

    @property
    def placeholder(self) -> str:
        """Placeholder of its value on the command line."""
        kind = self.rule.kind
        if isinstance(kind, tuple) and not self.metavar:
            return "|".join(kind)
        return self.metavar or _PLACEHOLDERS.get(kind, "")

    @property
    def command_name(self) -> str:
        """Name on the command line, with underscores."""
        return self.name if self.command is None else self.command

    @property
    def described(self) -> str:
        """The meaning and the default in Python."""
        default = self.default_text if self.default is None else repr(self.default)
        # If the defaults in Python and on the command line differ, the meaning includes that in Python.
        is_stated = self.default is None and self.command_default is not ...
        return f"{self.meaning} Default: {default}." if default and not is_stated else self.meaning


def _option(default: Any, meaning: str, metavar: str = "", rule: Rule | None = None, **how: Any) -> Any:
    """A field with an :class:`Option`."""
    option: Any = Option(default, meaning, metavar, rule, **how)
    return Field(default, json_schema_extra={"option": option})


class Options(BaseModel):
    """Checked options; an invalid one raises an :class:`fenchel.errors.InputError` that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def checked(cls, _names: dict[str, str] | None = None, /, **given: Any) -> Self:
        """Check options.

        Args:
            _names: Names of the options in messages, if others.
            **given: The options by name.

        Raises:
            InputError: If an option is invalid.
            TypeError: If there is no option of a name.
        """
        known, names = declared(cls), _names or {}
        for wrong in (name for name in given if name not in known):
            commands = {"text": "texts", **{one.command_name: one.name for one in known.values()}}
            expected = repr(commands[wrong]) if wrong in commands else f"one of {', '.join(known)}"
            raise TypeError(f"there is no option {wrong!r}; expected {expected}.")
        for name, value in given.items():
            given[name] = known[name].rule.check(names.get(name, name.replace("_", " ")), value)
        result = cls(**given)
        result._check_together()
        return result

    def _check_together(self) -> None:
        """Raise if options contradict each other."""


@cache
def declared(model: type[Options]) -> Mapping[str, Option]:
    """The options of a model by name, in order."""
    fields: Any = model.model_fields
    return {name: replace(field.json_schema_extra["option"], name=name) for name, field in fields.items()}


def takes(model: type[Options]) -> Callable[[_Function], _Function]:
    """Add the options of a model to the signature and the docstring of a function with ``**options``.

    Args:
        model: The options. The line ``**options:`` of the docstring is replaced by a line for each of them.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation
            )
            for name, field in model.model_fields.items()
        ]
        function.__signature__ = signature.replace(parameters=[*named, *keywords])  # pyright: ignore[reportFunctionMemberAccess]
        function.__options__ = model  # pyright: ignore[reportFunctionMemberAccess]
        described = "\n".join(f"        {one.name}: {one.described}" for one in declared(model).values())
        # With python -OO there are no docstrings.
        function.__doc__ = (
            re.sub(r"(?m)^ *\*\*options:.*$", lambda _: described, function.__doc__ or "") or None
        )
        return function

    return decorate


@dataclass(frozen=True)
class PairColumns:
    """Names of the columns of a table of pairs, as in its first line.

    Attributes:
        first: Column of the first sentences.
        second: Column of the second sentences.
        score: Column of their similarities.
    """

    first: str = "sentence_A"
    second: str = "sentence_B"
    score: str = "relatedness_score"

    def __post_init__(self) -> None:
        for name in ("first", "second", "score"):
            ARGUMENTS["column"].check(f"{name} column", getattr(self, name))


def _closeness(value: Any) -> str | None:
    from fenchel.closeness.tsallis import closeness_name

    return closeness_name(value)


class ReadingOptions(Options):
    """Options that audits, swaps and reproductions share: of texts, models and results."""

    whole_file: bool = _option(
        False, "Read a plain text file as one document instead of one per line.", recorded=None
    )
    text_column: str | None = _option(
        None, "Column of the texts in a table.", "NAME", default_text="text", recorded=None
    )
    target_column: str | None = _option(
        None,
        "Column of the target texts, for encoder-decoder models.",
        "NAME",
        default_text="the text itself",
        recorded=None,
    )
    max_tokens: int | None = _option(
        None,
        "Stop after N tokens of the text, counted over all shards; batches of a loader are read whole.",
        default_text="no limit",
        recorded=True,
    )
    batch_size: int = _option(8, "Windows, or single sentences, in a batch.")
    max_length: int | None = _option(
        None,
        "Tokens per window, including special tokens.",
        default_text="the maximum of the model, at most 512",
    )
    stride: int | None = _option(
        None,
        "Distance in tokens between the starts of windows; tokens in two windows count once.",
        default_text="no overlap",
    )
    device: str | None = _option(
        None,
        "Device to run on, such as cpu or cuda:1. In Python the default is the device of a loaded model, and the cpu "
        "for a named one.",
        "NAME",
        command_default=None,
        default_text="cuda if available, else cpu",
    )
    dtype: Any = _option(
        None,
        "Dtype of the model: float32, float64, bfloat16, float16, or auto for the dtype it was saved in. In Python "
        "the default keeps the dtype of a loaded model (others convert it in place) and loads a named one in float32.",
        "NAME",
        command_default="float32",
    )
    revision: str | None = _option(
        None,
        "Branch, tag or commit of a model on the hub.",
        "NAME",
        text("a branch, tag or commit, such as main"),
        default_text="the default branch",
    )
    seed: int = _option(0, "Random seed.", recorded=True)
    observer: Any = _option(
        None,
        "Object that receives the progress.",
        rule=where(
            lambda value: (
                not isinstance(value, type)
                and all(callable(getattr(value, name, None)) for name in ("started", "advanced", "finished"))
            ),
            "an object with the methods started, advanced, finished",
        ),
        command="",
    )
    directory: Path | None = _option(
        None, "Folder for the results; created if it does not exist.", "DIR", command="out", required=True
    )
    resume: bool = _option(False, "Continue the run in the folder, or start one; a finished run is kept.")
    overwrite: bool = _option(False, "Replace the run in the folder.")
    checkpoint_seconds: float = _option(60.0, "Save the state for --resume at most every S seconds.", "S")

    @property
    def progress_observer(self) -> RunObserver:
        """Object that is called with the progress."""
        return self.observer or SilentObserver()

    @property
    def of_text(self) -> dict[str, Any]:
        """Options of :func:`fenchel.io.documents.open_documents`, and the label column."""
        return self.model_dump(include={"whole_file", "text_column", "target_column", "label_column"})

    @property
    def recorded(self) -> dict[str, Any]:
        """The options in a manifest, with which a resumed run has to agree, as JSON values."""
        result: dict[str, Any] = {}
        for option in declared(type(self)).values():
            value, kept = getattr(self, option.name), option.recorded
            if kept or (kept is None and value != option.default):
                result[option.name] = list(value) if isinstance(value, tuple) else value
        return result

    def refuse_options_of_text(self, read: str, *besides: str) -> None:
        """Raise if an option of texts was given for another kind of input.

        Args:
            read: The other kind with its verb, such as "images were".
            *besides: Names of further options of texts.

        Raises:
            InputError: Naming the first.
        """
        fields = type(self).model_fields
        for name in (*_OF_TEXT, *besides, *self.of_text):
            if name in fields and getattr(self, name) != fields[name].default:
                raise InputError(
                    f"{name.replace('_', ' ')} applies to texts only, but {read} given. Leave it out."
                )

    def _check_together(self) -> None:
        if self.directory is None and (self.resume or self.overwrite):
            raise InputError(
                "resume or overwrite was given without a directory; expected directory=, the folder of the run."
            )


class SourceOptions(ReadingOptions):
    """Options of inputs other than texts."""

    images: Path | None = _option(
        None,
        "For vision models, instead of a text: an image, a folder of images or with a folder per class, or a parquet "
        "file.",
        "FOLDER",
    )
    loader: Path | None = _option(
        None,
        "For the folder of a training run, instead of a text: a Python file whose function load(folder) returns the "
        "model and its batches. The file is executed.",
        "FILE",
    )


_LAYERS = _option(
    None,
    "Only these layers, such as 1,3-5. Audits number them from 1 within each kind of attention, swaps in the order "
    "of the model's attention modules.",
    rule=ARGUMENTS["heads"],
    default_text="all",
    recorded=True,
)
_HEADS = _option(None, "Only these heads, numbered from 1, such as 1,3-5.", default_text="all", recorded=True)


def _queries(value: Any) -> int | str:
    if value is None or value in ("auto", "all"):
        return value or "all"
    return ARGUMENTS["count"].take(value)


def _estimators(value: Any) -> tuple[str, ...]:
    result = some_of("second_order", "exact", "none", "first_order").take(value)
    if "first_order" in result:
        raise InvalidValue(
            "contains first_order, which is the model itself and always measured (as the control at other alphas)"
        )
    if "none" in result and len(result) > 1:
        raise InvalidValue
    return result


def _head_names(value: Any) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(str(name).upper() for name in listed(value, 100_000, hashable=True)))
    for name in names:
        if not re.fullmatch(r"L[1-9][0-9]{0,5}H[1-9][0-9]{0,5}", name):
            raise InvalidValue(f"names {shown(name)}")
    return names


class AuditOptions(SourceOptions):
    """The options of :func:`fenchel.audit`."""

    queries: int | Literal["auto", "all"] = _option(
        "auto",
        "Measure a random sample of N queries of each window, or all of them; auto chooses N so that an audit of text "
        "costs about two forward passes.",
        "N",
        Rule("a whole number from 1, such as 32, or one of auto, all", _queries, (int, "auto", "all")),
    )
    layers: tuple[int, ...] | None = _LAYERS
    heads: tuple[int, ...] | None = _HEADS
    space: Literal["input", "key"] = _option(
        "key",
        "Templates: the keys (works for every model) or the inputs of the key map (as in the papers).",
        rule=one_of("input", "key"),
        recorded=True,
    )
    template_scale: Literal["model", "sqrt_d"] = _option(
        "model",
        "Scale of the templates in space input: the model's own, or x divided by the square root of the head's "
        "width, as in the paper, even for T5, which scales by 1.",
        rule=one_of("model", "sqrt_d"),
        recorded=None,
    )
    closeness: Any = _option(
        None,
        "Closeness that the model was trained with: tsallis:ORDER, sparsemax or entmax15.",
        "NAME",
        Rule("the name of a closeness", _closeness),
        default_text="softmax",
        recorded=None,
    )
    even_so: bool = _option(False, "Measure under --closeness although the model was trained with another.")
    alpha: float = _option(1.0, "Reliability of the evidence, above 0.", recorded=True)
    tol: float = _option(2e-4, "Relative tolerance of the exact solver.", recorded=True)
    memory_budget: int = _option(
        512 * 2**20,
        "Working memory of the exact solver, in MB; in Python, in bytes.",
        "MB",
        command_default=512,
        in_unit=lambda value: whole(1, 2**30, "512", "of MB").check("memory budget", value) * 2**20,
    )
    baseline: Literal["auto", "twin", "none"] | None = _option(
        None,
        "Also audit the model with random weights: if that takes less than a minute (auto), always (twin) or never "
        "(none). By default auto if a report is written, else none.",
        rule=one_of("auto", "twin", "none"),
        command_default="auto",
    )
    shard: Shard = _option(
        WHOLE,
        "Audit shard I (from 0) of N shards of the documents.",
        "I/N",
        Rule("a shard, such as (0, 4)", Shard.of),
        command_default=None,
        default_text="RANK/WORLD_SIZE, else 0/1",
    )
    keep_queries: bool = _option(False, "Has no effect: every audit keeps its queries.", hidden=True)

    def _check_together(self) -> None:
        super()._check_together()
        if self.template_scale != "model" and self.space != "input":
            raise InputError(
                f"template scale is {self.template_scale}, but in space {self.space} templates are the keys as the "
                "model scales them. Leave it out, or give --space input (space='input')."
            )

    @property
    def measured_closeness(self) -> AbstractCloseness | None:
        """The closeness; None for softmax."""
        from fenchel.closeness.tsallis import closeness_of

        return closeness_of(self.closeness)

    @property
    def folder(self) -> Path | None:
        """Folder of this shard's files: the directory itself if there is only one shard."""
        if self.directory is None or self.shard.count == 1:
            return self.directory
        return self.directory / f"shard-{self.shard.index}-of-{self.shard.count}"

    @property
    def control(self) -> str:
        """The baseline, by default ``auto`` if a report is written."""
        return self.baseline or ("none" if self.directory is None else "auto")


class SwapOptions(SourceOptions):
    """The options of :func:`fenchel.swap.swap`."""

    estimators: tuple[str, ...] = _option(
        ("second_order", "exact"),
        "Estimators to swap in: second_order, exact; none for ablations alone.",
        rule=Rule("none alone, or some of second_order, exact", _estimators, list[str]),
        recorded=True,
    )
    alphas: tuple[float, ...] = _option(
        (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3),
        "Values of alpha for the control, first-order attention; ablations alone have none unless given.",
        rule=numbers(number("0.8", above=0.0, in_float32=True)),
        command_default=None,
        default_text="0.5,0.6,...,1.3",
        recorded=True,
    )
    per_layer: bool = _option(False, "Also swap one layer at a time, with every control.", recorded=True)
    per_head: bool = _option(False, "Also swap one head at a time, with three controls.", recorded=True)
    ablations: tuple[str, ...] | None = _option(
        None,
        "Ablations of each layer (--per-layer) or head (--per-head), or of heads --together, which replace outputs: "
        "zero, mean (the head's mean output over the text), uniform (equal weights on all visible keys), preference "
        "(its weights at z = 0).",
        rule=some_of(*ABLATIONS),
        default_text="none",
        recorded=None,
    )
    together: tuple[str, ...] | None = _option(
        None,
        "Heads whose outputs --ablations also replace all at once, by layer and head, such as L2H3,L5H1.",
        rule=Rule("heads such as L2H3", _head_names, list[str]),
        default_text="none",
        recorded=None,
    )
    label_column: str | None = _option(
        None,
        "Column of the classes of the texts or images in a table: measures the loss and accuracy of the model's "
        "classification head. Images in folders named by class need none.",
        "NAME",
        default_text="no labels",
        recorded=None,
    )
    layers: tuple[int, ...] | None = _LAYERS
    heads: tuple[int, ...] | None = _HEADS
    max_pairs: int | None = _option(
        None, "Use only the first N scored pairs.", rule=whole(3, 10**9, "1000"), default_text="all"
    )
    sample_pairs: int = _option(10_000, "Maximum number of pairs of texts whose similarities are ranked.")
    mask_probability: float = _option(
        0.15,
        "Fraction of tokens to mask, for masked language models.",
        rule=number("0.15", above=0.0, below=1.0),
    )
    bootstrap: int = _option(
        2000,
        "Bootstrap resamples for the intervals.",
        rule=whole(100, 100_000, "2000", "of resamples"),
        recorded=True,
    )
    tol: float | None = _option(
        None,
        "Relative tolerance of the exact estimator.",
        default_text="1e-5, in float64 1e-10",
        recorded=True,
    )
    columns: PairColumns = _option(
        PairColumns(),
        "Names of the columns of a table of pairs, a fenchel.swap.PairColumns.",
        rule=of_type(PairColumns, "fenchel.swap.PairColumns(first, second, score)"),
        command="",
    )

    def _check_together(self) -> None:
        super()._check_together()
        if self.estimators == ("none",) and self.ablations:
            if "alphas" not in self.model_fields_set:
                object.__setattr__(self, "alphas", (1.0,))
        elif not set(self.alphas) - {1.0}:
            raise InputError(
                f"alphas is {list(self.alphas)}; expected at least one other than 1. Without a control a better "
                "estimator cannot be told from softer attention."
            )


class ReproduceOptions(ReadingOptions):
    """The options of :func:`fenchel.reproducing.reproduce`."""

    model: Any = _option(
        None,
        "Hub name, local folder, or demo.",
        "MODEL",
        ARGUMENTS["model_name"],
        default_text="the papers' own",
    )
    tol: float = _option(2e-5, "Relative tolerance of the exact solver.", recorded=True)
    directory: Path | None = _option(
        None,
        "Folder for the results; created if it does not exist.",
        "DIR",
        command="out",
        command_default="reproduce",
    )
