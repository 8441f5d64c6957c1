"""Make a figure: open what it is made of, find its numbers, write them and what they look like."""

from __future__ import annotations

from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.auditing.audit_report import AuditReport
from fenchel.comparing.audited import opened
from fenchel.errors import InputError
from fenchel.figures.figure_kind import FigureKind
from fenchel.figures.figure_report import EXTRA, FigureReport, refuse_occupied
from fenchel.figures.registry import FIGURES, figure_named
from fenchel.runs.extras import require_packages
from fenchel.storage import check_writable, json_text, removed_if_empty
from fenchel.storage.digest import digest_of_bytes

__all__ = ["make_figure"]


def make_figure(
    name: str,
    audit: str | Path | AuditReport | None = None,
    *,
    directory: str | Path | None = None,
    overwrite: bool = False,
) -> FigureReport:
    """Make a figure, and write it as PNG, SVG and JSON where a folder is given.

    Args:
        name: One of ``FIGURES``.
        audit: For figures of an audit: its folder, or what ``fenchel.audit`` returned.
        directory: Where to write ``NAME.png``, ``NAME.svg`` and ``NAME.json``. Default: nothing is written.
        overwrite: Replace the figure of something else that the folder may hold under this name.

    Returns:
        The figure: ``numbers``, ``caption``, ``draw()`` and ``save()``.

    Raises:
        InputError: If there is no such figure, it needs an audit or takes none, the audit cannot be read, or the folder
            holds another.
        OutputError: If something cannot be written.
        MissingExtraError: If a package that is needed is not installed.

    Example:
        >>> from fenchel.figures import make_figure
        >>> made = make_figure("figure3")
        >>> [panel["apart"] for panel in made.numbers["panels"]]
        [0.25091, 0.119362, 0.0518906, 0.0193566]
    """
    kind = figure_named(name)
    overwrite, folder = checked("overwrite", overwrite), checked("directory", directory)
    _refuse_audit(kind, audit)
    require_packages(EXTRA, "matplotlib")
    if audit is None:
        for extra, package in kind.needs:
            require_packages(extra, package)
    report = _opened(audit)
    of = None if report is None else _digest(report)
    if folder is None:
        return FigureReport(kind, of, kind.measure(report))
    refuse_occupied(folder, kind.name, of, overwrite=overwrite)
    with removed_if_empty(folder):
        check_writable(folder)
        made = FigureReport(kind, of, kind.measure(report))
        made.save(folder, overwrite=overwrite)
    return made


def _refuse_audit(kind: FigureKind, audit: object) -> None:
    if audit is None and kind.audit == "required":
        raise InputError(
            f"the figure {kind.name} is made of an audit, and none was given; expected its folder, such as "
            f"fenchel figure {kind.name} my-audit."
        )
    if audit is not None and kind.audit == "none":
        taking = [name for name, other in FIGURES.items() if other.audit != "none"]
        raise InputError(
            f"the figure {kind.name} is made of no audit, and {shown(audit)} was given. Leave it out; "
            f"figures of an audit are {' and '.join(taking)}."
        )
    if audit is not None and not isinstance(audit, str | Path | AuditReport):
        raise InputError(
            f"audit is {shown(audit)}; expected the folder of an audit, or what fenchel.audit returned."
        )


def _opened(audit: str | Path | AuditReport | None) -> AuditReport | None:
    if audit is None or isinstance(audit, AuditReport):
        return audit
    require_packages("hf", "safetensors")
    folder: Path = checked("audit_folder", audit, name="audit")
    return opened(folder, str(folder))


def _digest(report: AuditReport) -> str:
    """What tells one audit from another: what it was asked, and what it found."""
    return digest_of_bytes(json_text([report.manifest, report.heads, report.twin_heads]).encode())
