"""The subcommands of ``fenchel``, each of which passes its options to a function of the library."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from fenchel import __version__
from fenchel.arguments import MOST_LAYERS, checked, shown
from fenchel.cli.terminal import (
    Interrupted,
    interruptible,
    is_first_process,
    load_swap,
    observer_of_standard_error,
    print_entry,
    print_list,
    say,
    show,
    show_result,
)
from fenchel.io.runs import Shard
from fenchel.run_options import (
    AuditOptions,
    Option,
    Options,
    PairColumns,
    ReproduceOptions,
    SwapOptions,
    declared,
)

# At most nine digits: more than the number of any layer needs, and quick to convert.
_PART = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")

_EXPECTED = {int: "a whole number", float: "a number", list[float]: "a list of numbers, such as 0.5,0.8"}


def with_options(model: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the argument ``options`` of a command by the options of a model.

    Args:
        model: The options; the command is called with an instance of it.
    """
    options = {option.command_name: option for option in declared(model).values() if option.command_name}
    names = {option.name: name.replace("_", " ") for name, option in options.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {option.name: (option, given.pop(name)) for name, option in options.items()}
            named = {
                name: value if option.in_unit is None else option.in_unit(value)
                for name, (option, value) in values.items()
                if value is not None
            }
            command(**given, options=model.checked(names, **named))

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [
            *(one.replace(kind=one.KEYWORD_ONLY) for one in own if one.name != "options"),
            *(_parameter(name, option) for name, option in options.items()),
        ]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(name: str, option: Option) -> inspect.Parameter:
    """An option as a parameter of typer."""
    kind, parser = option.rule.kind, None
    default = option.default if option.command_default is ... else option.command_default
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(kind, tuple) and int not in kind:
        kind = Literal[kind]
    elif kind not in (bool, str):
        # The errors of typer leave out the value.
        kind, parser = Any, partial(_parsed, kind)
    default_text = f"  [default: {option.default_text}]" if option.default_text and default is None else ""
    declaration = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=option.placeholder or None,
        help=f"{option.meaning}{default_text}",
        show_default=default is not None and kind is not bool,
        hidden=option.hidden,
        parser=parser,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=Annotated[kind if option.required or kind is bool else kind | None, declaration],
    )


def _parsed(kind: Any, text: Any) -> Any:
    """The value in Python of an option on the command line, given the kind of its rule."""
    others = ""
    if isinstance(kind, tuple):
        if text in kind:
            return text
        kind, others = int, f", nor {' or '.join(one for one in kind if isinstance(one, str))}"
    if kind == list[int]:
        return numbers(text)
    if kind == list[str]:
        return [part.strip() for part in text.split(",")]
    try:
        return [float(part) for part in text.split(",")] if kind == list[float] else kind(text)
    except ValueError:
        raise _wrong(text, f"is not {_EXPECTED[kind]}{others}") from None


def _wrong(text: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(f"{shown(text)} {why}.")


def numbers(text: str) -> list[int]:
    """Numbers of layers or heads and ranges of them, separated by commas, as sorted numbers.

    Raises:
        typer.BadParameter: If the text is anything else.

    Example:
        >>> numbers("7,1,3-5,4")
        [1, 3, 4, 5, 7]
    """
    result: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise _wrong(text, "is not a list of numbers and ranges, such as 1,3-5")
        if last > MOST_LAYERS:
            raise _wrong(text, f"goes up to {last:,}; expected numbers from 1 to {MOST_LAYERS:,}")
        result.update(range(first, last + 1))
    return sorted(result)


application = typer.Typer(
    name="fenchel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

_command = partial(application.command, no_args_is_help=True)
_option, _argument = (partial(kind, show_default=False) for kind in (typer.Option, typer.Argument))

_Model = Annotated[str, _argument(metavar="MODEL", help="Hub name, local folder, or demo.")]
_Text = Annotated[
    str | None,
    _option(
        metavar="FILE",
        help="Plain text, or a table (.csv, .tsv, .jsonl, .json, .parquet); or a dataset, NAME[:CONFIG][@SPLIT]; or "
        "demo, a short text that comes with fenchel.",
    ),
]
_Folders = Annotated[list[str], _argument(metavar="DIR", help="Folders of finished audits.")]
_Swap = Annotated[
    str | None,
    _option(
        metavar="DIR",
        help="Folder of a swap of this model and text with --per-head and the estimator exact; plots each head's "
        "deviation against its effect.",
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace other results in --out.")]


@_command(
    epilog="Example: fenchel audit demo --text demo --out audit --layers 1,3-5. Then open audit/report.html in a "
    "browser."
)
@with_options(AuditOptions)
def audit(model: _Model, options: AuditOptions, text: _Text = None, swap: _Swap = None) -> None:
    """Measure a model's attention on a text and write a report.

    How far is each attention head of a trained transformer from exact inference, on a text or on images? MODEL is a
    name on the Hugging Face hub, a local folder, 'demo' (a small encoder, installed with the extra of that name), or
    with --loader the folder of a training run.
    """
    from fenchel.auditing import audit
    from fenchel.auditing.audit_report import AUDIT

    if "shard" not in options.model_fields_set:
        options = options.model_copy(update={"shard": Shard.from_environment()})
    folder = cast("Path", options.folder)
    measured_swap = load_swap(swap, model)
    with interruptible(observer_of_standard_error(), AUDIT, folder) as observer:
        report = audit(model, None, text, **_arguments(options, observer))
    if measured_swap is not None:
        report = report.beside_swap(measured_swap)
        report.write_files(folder)
    show_result(report, folder)
    if options.shard.count > 1 and is_first_process():
        typer.echo(
            f"This is shard {options.shard}. When all are finished: fenchel merge "
            f"{shlex.quote(str(options.directory))}"
        )


@_command(
    epilog="Example: fenchel audit demo --text demo --out audit --shard 0/2; "
    "fenchel audit demo --text demo --out audit --shard 1/2; fenchel merge audit"
)
def merge(
    directories: _Folders,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the results.  [default: the one DIR, if only one]"),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Merge even if shards are missing.")] = False,
    overwrite: _Overwrite = False,
) -> None:
    """Merge the audits of shards into one.

    The shards are of one text; the order of the folders does not matter. Each DIR holds an audit, or folders
    shard-I-of-N with one each.
    """
    if out is None and len(directories) > 1:
        raise typer.BadParameter("several folders: say with --out where to write the merged audit.")
    from fenchel.auditing.merge import merge

    folders: list[Path] = [checked("folder", directory, name="DIR") for directory in directories]
    target: Path = folders[0] if out is None else checked("folder", out, name="out")
    show_result(merge(folders, target, partial=partial, overwrite=overwrite), target)


@_command(
    epilog="Example: fenchel audit demo --text demo --out one; fenchel audit demo --text README.md --out two; "
    "fenchel compare one two --out compare. Then open compare/compare.html in a browser."
)
def compare(
    directories: _Folders,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the page and the JSON.")] = "compare",
    overwrite: _Overwrite = False,
) -> None:
    """Compare audits: two models, texts or checkpoints.

    Compares finished audits head by head: of two models of one shape, of two texts, or of a model before and after
    fine-tuning. The last DIR is compared with the first; more than two are shown as a trajectory, in the order given.
    Reports which heads changed, with intervals, and whether the ranking of the heads did.
    """
    place: Path = checked("folder", out, name="out")
    from fenchel.comparing import compare
    from fenchel.comparing.report import finding, terminal_table

    report = compare(*directories, directory=place, overwrite=overwrite)
    show(terminal_table(report), finding(report), last=f"Page: {place / 'compare.html'}")


@_command(
    epilog="Example: fenchel swap demo --text demo --out swap --alphas 0.8,1.2. Then open swap/swap.html."
)
@with_options(SwapOptions)
def swap(
    model: _Model,
    options: SwapOptions,
    text: _Text = None,
    pairs: Annotated[
        str | None,
        _option(metavar="FILE", help="Table of scored pairs of sentences, by default separated by tabs."),
    ] = None,
    first_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the pairs' first sentences.")
    ] = PairColumns.first,
    second_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the pairs' second sentences.")
    ] = PairColumns.second,
    score_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the pairs' scores, higher for more similar.")
    ] = PairColumns.score,
) -> None:
    """Swap a model's inference and measure what changes.

    Runs a trained model with another estimator in its attention, without retraining, and measures how its outputs
    change: loss and hidden states, or sentence embeddings of a model without a language-model head. The control is
    first order at other values of alpha, which only smooths or sharpens attention. MODEL is a name on the Hugging Face
    hub, a local folder, 'demo', or with --loader the folder of a training run.
    """
    columns = PairColumns(first_column, second_column, score_column)
    from fenchel.swap import swap
    from fenchel.swap.report import terminal_table
    from fenchel.swap.run import SWAP

    place = cast("Path", options.directory)
    with interruptible(observer_of_standard_error("swapping"), SWAP, place) as observer:
        given = {**_arguments(options, observer), "columns": columns}
        report = swap(model, None, text, pairs=pairs, **given)
    show(terminal_table(report), report.finding, last=f"Page: {place / 'swap.html'}")


@_command(epilog="Example: fenchel report audit")
def report(
    directory: Annotated[str, _argument(metavar="DIR", help="Folder of a finished audit.")],
    swap: _Swap = None,
) -> None:
    """Write the report of an audit again.

    Writes report.html, the figures and the tables of a finished audit again, from its saved numbers. Nothing is
    measured; use it after an update of fenchel, or when a file was lost.
    """
    from fenchel.auditing.audit_report import AuditReport, require_extras
    from fenchel.io.runs import check_writable

    folder: Path = checked("folder", directory, name="DIR")
    result = AuditReport.load(folder)
    if (measured_swap := load_swap(swap)) is not None:
        result = result.beside_swap(measured_swap)
    require_extras()
    check_writable(folder)
    result.write_files(folder)
    show_result(result, folder)


@_command(
    epilog="Example: fenchel reproduce figure4 --model demo --text demo. Then read reproduce/figure4.md."
)
@with_options(ReproduceOptions)
def reproduce(
    figure: Annotated[
        Literal["figure4", "figure5", "figures6-8"],
        _argument(metavar="FIGURE", help="figure4, figure5 or figures6-8."),
    ],
    options: ReproduceOptions,
    text: _Text,
) -> None:
    """Compare a figure of the papers with the same figure of a model.

    The figures are mean relative deviations of BERT-base by layer (figure4) or head (figure5), of T5-small by head
    (figures6-8) or layer (figure4 with that model). Shows the papers' numbers beside those of the model, from certified
    exact solutions, and of the same model with random weights.
    """
    from fenchel.auditing.audit_report import AUDIT
    from fenchel.reproducing import finding, reproduce, terminal_table

    place = cast("Path", options.directory)
    with interruptible(observer_of_standard_error(), AUDIT, place / "audit") as observer:
        result = reproduce(figure, text, **_arguments(options, observer))
    sentences = f"{result.standing} {finding(result)}"
    show(terminal_table(result), sentences, last=f"Table: {place / f'{result.figure}.md'}")


@application.command(epilog="Example: fenchel catalogue alibi. As JSON: fenchel catalogue --json.")
def catalogue(
    name: Annotated[str | None, _argument(metavar="NAME", help="A mechanism, such as alibi.")] = None,
    closeness: Annotated[
        str | None,
        _option(metavar="NAME", help="Measure the example under another closeness, such as tsallis:1.5."),
    ] = None,
    seed: Annotated[
        Any,
        typer.Option(metavar="N", help="Seed of the example.  [default: 0]", parser=partial(_parsed, int)),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look up a mechanism of attention as an inference.

    Shows its templates, preference, evidence and closeness, whether it is one inference, a composition or none, and
    how far the published form is from the exact solution on a small example. Without NAME all are listed.
    """
    if name is None:
        for option, value in (("--closeness", closeness), ("--seed", seed)):
            if value is not None:
                raise typer.BadParameter(f"{option} applies to the example of one mechanism: give NAME too.")
    from fenchel.catalogue import ENTRIES
    from fenchel.catalogue import entry as looked_up
    from fenchel.catalogue.registry import described, record

    if name is None:
        if as_json:
            _print_json([record(one) for one in ENTRIES.values()])
        else:
            print_list(ENTRIES.values())
        return
    result = looked_up(name)
    if closeness is not None:
        result.check("first_order", closeness)
    if as_json:
        _print_json(described(result, closeness, seed or 0))
    else:
        print_entry(result, closeness, seed or 0)


def _arguments(options: AuditOptions | SwapOptions | ReproduceOptions, observer: Any) -> dict[str, Any]:
    """The options as arguments of a function of the library."""
    device = best_device() if options.device is None else options.device
    return {**dict(options), "device": device, "observer": observer}


def best_device() -> str:
    """The default device; each of several processes gets its own."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments after ``fenchel``. Default: those of the process.

    Returns:
        The exit code, 2 for wrong usage. Exceptions of the library are not caught.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = application(args=given, prog_name="fenchel", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Interrupted as interrupted:
        raise interrupted.with_command(given) from None
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            cast("Any", error).show()
        else:
            say(f"error: {_explained(error)}")
        return cast("Any", error).exit_code
    return code if isinstance(code, int) else 0


# A class of typer or of click, depending on typer's version.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def _explained(error: Any) -> str:
    """The error of a command line and a hint to the help."""
    text = str(error.format_message()).replace("Value error, ", "").rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "fenchel")
    return f"{text}{'' if text.endswith('?') else '.'} Try '{command} -h' for help."


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fenchel {__version__}")
        raise typer.Exit


@application.callback()
def describe(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Attention as inference: how far each head of a transformer is from the problem it approximates."""
