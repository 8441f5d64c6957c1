"""``fenchel catalogue``: the mechanisms of the field, each as an inference."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["EXAMPLE", "HELP", "NAME", "NEEDS_ARGUMENTS", "SUMMARY", "run"]

NAME = "catalogue"
NEEDS_ARGUMENTS = False
SUMMARY = "Look up a mechanism of attention as an inference."
HELP = (
    "Every mechanism of the field as one inference: what its templates, preference, evidence and closeness are, "
    "whether it is one inference, a composition or none, and how far what is published is from the exact answer on a "
    "small example. Without NAME all are listed."
)
EXAMPLE = "Example: fenchel catalogue alibi. As JSON: fenchel catalogue --json."


def run(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A mechanism, such as alibi.", show_default=False),
    ] = None,
    closeness: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Measure the example under another closeness, such as tsallis:1.5.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the example.  [default: 0]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Wires the options to ``fenchel.catalogue``."""
    from fenchel.catalogue import ENTRIES
    from fenchel.catalogue import entry as looked_up
    from fenchel.catalogue.table import described, record
    from fenchel.cli.catalogue_page import print_entry, print_list

    def print_json(found: Any) -> None:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False))

    if name is None:
        for option, given in (("--closeness", closeness), ("--seed", seed)):
            if given is not None:
                raise typer.BadParameter(f"{option} is of one mechanism's example: name the mechanism too.")
        if as_json:
            print_json([record(one) for one in ENTRIES.values()])
        else:
            print_list(ENTRIES.values())
        return
    found = looked_up(name)
    if closeness is not None:
        found.check("first_order", closeness)
    if as_json:
        print_json(described(found, closeness, seed or 0))
    else:
        print_entry(found, closeness, seed or 0)
