"""A swap as one self-contained page: no network, no script, all text escaped, all numbers those of ``swap.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fenchel.auditing.report.html import manifest_entries, page_environment, page_file
from fenchel.drawing import LEVELS, scale, stylesheet
from fenchel.swap.arm_rows import arm_tables
from fenchel.swap.finding import signed
from fenchel.swap.where_it_arises import head_maps, stacks
from fenchel.swap.wording import wording

if TYPE_CHECKING:
    from fenchel.swap.swap_tables import SwapTables

__all__ = ["render_html"]

_PACKAGE = "fenchel.swap"
_REPORT = "fenchel.auditing.report"
_STYLES = ((_REPORT, "report.css"), (_REPORT, "whiskers.css"), (_PACKAGE, "swap.css"))
_NAMES = {"exact": "Exact", "second_order": "Second order"}


def render_html(tables: SwapTables) -> str:
    """A swap as one HTML page that needs no network and runs no script.

    Args:
        tables: The swap. Its texts (model, text, modules) are escaped, whatever they hold.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    environment = page_environment(_PACKAGE)
    environment.filters["signed"] = signed
    colours = scale()
    return environment.get_template("swap.html.jinja").render(
        manifest=tables.manifest,
        finding=tables.finding,
        units=tables.results["units"],
        words=wording(tables.manifest),
        quality=tables.results["quality"],
        smoothing=tables.results["smoothing"],
        main=_main(tables),
        model=next(record for record in tables.arms if record["estimator"] == "model"),
        tables=arm_tables(tables),
        stacks=stacks(tables),
        maps=head_maps(tables),
        names=_NAMES,
        levels=range(LEVELS),
        entries=sorted(manifest_entries({**tables.manifest, "stacks": _stacks(tables.manifest)})),
        style="".join(page_file(package, name) for package, name in _STYLES),
        light_scale=stylesheet(colours),
        dark_scale=stylesheet(colours[::-1]),
    )


def _main(tables: SwapTables) -> dict[str, Any] | None:
    """The model-wide arm of the exact estimator, or of the last one where exact was not asked for."""
    swaps = [
        arm
        for arm in tables.arms
        if arm["where"] == "model" and not arm["control"] and arm["estimator"] != "model"
    ]
    return next((arm for arm in swaps if arm["estimator"] == "exact"), swaps[-1] if swaps else None)


def _stacks(manifest: Mapping[str, Any]) -> list[str]:
    stacks = manifest.get("stacks", {}).items()
    return [f"{name}: {count} layers" for name, count in stacks if name != "output"]
