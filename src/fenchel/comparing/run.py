"""Compare audits: read them, see that they can be compared, put their numbers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.auditing.audit_report import AuditReport
from fenchel.comparing.audited import Audited, opened
from fenchel.comparing.comparison_report import ComparisonReport
from fenchel.comparing.convention import refuse_other_convention, refuse_other_heads
from fenchel.errors import InputError, require_packages

__all__ = ["compare"]

_MOST_AUDITS = 200


def compare(
    *audits: str | Path | AuditReport,
    names: Sequence[str] | None = None,
    directory: str | Path | None = None,
    overwrite: bool = False,
) -> ComparisonReport:
    """Compare audits of one convention and of models of one shape: the last with the first, and all in between.

    Which heads moved is judged by the difference of their medians. Its interval comes from the counts that an audit
    keeps, by the binomial distribution of order statistics; all heads' intervals of a metric hold at once with
    probability 0.95, whatever the distributions and however the two audits depend on each other, if the queries of an
    audit are independent draws. Tokens of long documents are not: docs/compare.md measures what that costs.

    Args:
        audits: Two or more, each a folder that ``fenchel.audit`` wrote or what it returned.
        names: What to call each. Default: the folder as it was given, or the model.
        directory: Where to write ``compare.html`` and ``compare.json``. Default: nothing is written.
        overwrite: Replace the other comparison that the folder may hold.

    Returns:
        The comparison.

    Raises:
        InputError: If an audit cannot be read, one is there twice, or two differ in space, α, tolerance, versions or
            heads; the message names what, and both values.
        OutputError: If something cannot be written.
        MissingExtraError: If a package that is needed is not installed.

    Example:
        >>> from fenchel.comparing import compare
        >>> compare("before-fine-tuning")
        Traceback (most recent call last):
        ...
        fenchel.errors.InputError: 1 audit was given; expected two or more, such as compare('before', 'after').
    """
    overwrite, folder = checked("overwrite", overwrite), checked("directory", directory)
    require_packages("hf", "safetensors")
    require_packages("report", "scipy", "jinja2")
    if not 2 <= len(audits) <= _MOST_AUDITS:
        said = "1 audit was" if len(audits) == 1 else f"{len(audits)} audits were"
        raise InputError(
            f"{said} given; expected two or more, such as compare('before', 'after')."
            if len(audits) < 2
            else f"{said} given; expected at most {_MOST_AUDITS}. Leave some checkpoints out."
        )
    given = [_given(audit, place) for place, audit in enumerate(audits, start=1)]
    called = _names(given, names)
    _refuse_repetition(given, called)
    found: list[Audited] = []
    for audit, name in zip(given, called, strict=True):
        found.append(Audited.of(name, audit if isinstance(audit, AuditReport) else opened(audit, name)))
        pair = (found[0].name, name)
        refuse_other_convention(pair, (found[0].manifest, found[-1].manifest))
        refuse_other_heads(pair, (list(found[0].heads), list(found[-1].heads)))
    report = ComparisonReport(tuple(found))
    if folder is not None:
        report.save(folder, overwrite=overwrite)
    return report


def _given(audit: object, place: int) -> Path | AuditReport:
    if isinstance(audit, AuditReport):
        return audit
    if not isinstance(audit, str | Path):
        raise InputError(
            f"audit {place} is {shown(audit)}; expected the folder of an audit, or what fenchel.audit returned."
        )
    return checked("audit_folder", audit, name=f"audit {place}")


def _names(given: Sequence[Path | AuditReport], names: Sequence[str] | None) -> list[str]:
    if names is not None:
        found = list(names)
        if len(found) != len(given) or not all(isinstance(name, str) and name.strip() for name in found):
            raise InputError(f"names is {shown(found)}; expected {len(given)} texts that are not empty.")
    else:
        found = [
            str(audit.manifest.get("model") or "an audit") if isinstance(audit, AuditReport) else str(audit)
            for audit in given
        ]
        found = [
            f"{name} ({place})" if found.count(name) > 1 and isinstance(audit, AuditReport) else name
            for place, (name, audit) in enumerate(zip(found, given, strict=True), start=1)
        ]
    if names is not None and len(set(found)) < len(found):
        raise InputError(f"names is {shown(found)}; expected a different one for each audit.")
    return found


def _refuse_repetition(given: Sequence[Path | AuditReport], names: Sequence[str]) -> None:
    seen: dict[object, str] = {}
    for audit, name in zip(given, names, strict=True):
        key: object = id(audit) if isinstance(audit, AuditReport) else audit.resolve()
        if key in seen:
            twice = f"{name} is given twice" if seen[key] == name else f"{seen[key]} and {name} are one audit"
            raise InputError(f"{twice}; expected another audit to compare it with.")
        seen[key] = name
