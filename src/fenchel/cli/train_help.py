"""The help of ``fenchel train``: of all models, or with ``--model NAME`` of one, with its own defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from fenchel.train.settings import Setting

__all__ = ["OF_THE_RUN", "Command", "options_of_the_command"]

OF_THE_RUN = frozenset({"out", "device", "resume", "overwrite", "checkpoint_seconds", "settings"})
"""Options that decide no numbers: no model's options know them."""

_OF_EVERY_MODEL = OF_THE_RUN | {"data", "model", "help"}
_MODEL = "fenchel.train.model"


class Command(TyperCommand):
    """The command with every model's own options and defaults in its help, as the models have them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps which model is asked of: the help is written before options are read."""
        if args:
            ctx.meta[_MODEL] = self.make_parser(ctx).parse_args(args=list(args))[0].get("model")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The options: those that a model takes, as it means them, where one is named."""
        model = ctx.meta.get(_MODEL)
        if model is None:
            super().format_options(ctx, formatter)
            return
        known, rows = _settings(model), []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.name in _OF_EVERY_MODEL:
                rows.append(record)
            elif record is not None and parameter.name in known:
                rows.append((record[0], known[parameter.name].help))
        with formatter.section(f"Options of the model {model}"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example, after the defaults of each model and what ``--set`` takes."""
        from fenchel.train.registry import TASKS

        model, flags = ctx.meta.get(_MODEL), options_of_the_command(ctx)
        models = [model] if model else [name for task in TASKS.values() for name in task.models]
        if model is None:
            with formatter.section("Defaults that depend on the model (--model NAME --help: all of one)"):
                formatter.write_dl(_defaults(models, flags))
        for names, settings in _together(models, flags):
            with formatter.section(f"--set for {', '.join(names)}"):
                formatter.write_dl([(f"{name}=...", one.help) for name, one in settings.items()])
        super().format_epilog(ctx, formatter)


def options_of_the_command(context: Any) -> list[str]:
    """Names of what has an option of its own, and is not given by ``--set``."""
    return [parameter.name for parameter in context.command.params]


def _settings(model: str) -> dict[str, Setting]:
    from fenchel.train.registry import task_of_model
    from fenchel.train.settings import settings_of

    return settings_of(task_of_model(model).options_type, model=model)


def _defaults(models: list[str], flags: list[str]) -> list[tuple[str, str]]:
    """Of each model the options whose default is not that of all others that have them."""
    known = {model: _settings(model) for model in models}
    differing = [
        flag
        for flag in flags
        if flag not in _OF_EVERY_MODEL
        and len({settings[flag].written_default for settings in known.values() if flag in settings}) > 1
    ]
    return [
        (
            model,
            ", ".join(
                f"{flag.replace('_', ' ')} {settings[flag].written_default}"
                for flag in differing
                if flag in settings
            ),
        )
        for model, settings in known.items()
    ]


def _together(models: list[str], flags: list[str]) -> list[tuple[list[str], dict[str, Setting]]]:
    """What ``--set`` takes, with the models that take the same."""
    found: list[tuple[list[str], dict[str, Setting]]] = []
    for model in models:
        own = {name: one for name, one in _settings(model).items() if name not in flags}
        if found and found[-1][1] == own:
            found[-1][0].append(model)
        elif own:
            found.append(([model], own))
    return found
