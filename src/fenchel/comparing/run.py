"""Compare audits: read them, see that they can be compared, put their numbers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.state import STATE_FILE
from fenchel.auditing.statistics import AuditStatistics
from fenchel.comparing.comparison import Audited, same_text
from fenchel.comparing.report import ComparisonReport
from fenchel.errors import InputError, require_packages
from fenchel.io.runs import differences

_MOST_AUDITS = 200
_CONVENTIONS = ("schema", "fenchel", "space", "closeness", "alpha", "tol", "convention")
"""What decides what a number of an audit means: versions of files and package, problem, tolerance."""

_UNSAID = {"closeness": "softmax"}
"""What a convention is that a manifest has only where it is another."""

_DRAWN = ("queries", "seed")
"""What decides which queries of a window are measured: audits that differ in it are compared by those of both."""

_ADVICE = "Audit one of them again with the options of the other."


def compare(
    *audits: str | Path | AuditReport,
    names: Sequence[str] | None = None,
    directory: str | Path | None = None,
    overwrite: bool = False,
) -> ComparisonReport:
    """Compare audits of one convention and of models of one shape: the last with the first, and all in between.

    Which heads moved is judged by the difference of their medians. Its interval comes from resampling documents, which
    are independent where tokens of one are not; where the audits read the same text, the same documents are drawn of
    both and their queries paired by document and position. All heads' intervals of a metric hold at once with
    probability 0.95. One or two documents give no interval.

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
    manifests: list[dict[str, Any]] = []
    statistics: list[AuditStatistics] = []
    for audit, name in zip(given, called, strict=True):
        read = audit if isinstance(audit, AuditReport) else _opened(audit, name)
        manifests.append(read.manifest)
        statistics.append(read.statistics)
        if not read.statistics.keys():
            raise InputError(
                f"{name} holds an audit without a head: no document fell into its share. Give one that has some."
            )
        pair = (called[0], name)
        _refuse_other_convention(pair, (manifests[0], manifests[-1]))
        _refuse_other_heads(pair, (statistics[0].keys(), statistics[-1].keys()))
    drawn, tokens = ({tuple(map(one.get, names)) for one in manifests} for names in (_DRAWN, ("tokens",)))
    if same_text(*manifests) and len(tokens) == 1 < len(drawn):
        statistics = [own.shared_with(statistics) for own in statistics]
    result = zip(called, manifests, statistics, strict=True)
    report = ComparisonReport(tuple(Audited(*audit) for audit in result))
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
        result = list(names)
        if len(result) != len(given) or not all(isinstance(name, str) and name.strip() for name in result):
            raise InputError(f"names is {shown(result)}; expected {len(given)} texts that are not empty.")
    else:
        result = [
            str(audit.manifest.get("model") or "an audit") if isinstance(audit, AuditReport) else str(audit)
            for audit in given
        ]
        result = [
            f"{name} ({place})" if result.count(name) > 1 and isinstance(audit, AuditReport) else name
            for place, (name, audit) in enumerate(zip(result, given, strict=True), start=1)
        ]
    if names is not None and len(set(result)) < len(result):
        raise InputError(f"names is {shown(result)}; expected a different one for each audit.")
    return result


def _refuse_repetition(given: Sequence[Path | AuditReport], names: Sequence[str]) -> None:
    seen: dict[object, str] = {}
    for audit, name in zip(given, names, strict=True):
        key: object = id(audit) if isinstance(audit, AuditReport) else audit.resolve()
        if key in seen:
            twice = f"{name} is given twice" if seen[key] == name else f"{seen[key]} and {name} are one audit"
            raise InputError(f"{twice}; expected another audit to compare it with.")
        seen[key] = name


def _opened(folder: Path, name: str) -> AuditReport:
    """The audit in a folder.

    Args:
        folder: The folder.
        name: What the user calls it.

    Raises:
        InputError: If the folder is not there, holds no audit, one of another version, a damaged one, an unfinished one
            or only what was made from one.
    """
    if not folder.exists():
        raise InputError(
            f"{name} is not there; expected the folder of an audit, which fenchel audit --out makes."
        )
    if not folder.is_dir():
        raise InputError(f"{name} is a file; expected the folder of an audit that holds {STATE_FILE}.")
    if not (folder / STATE_FILE).exists():
        raise InputError(f"{name} {_what_is_there(folder)}")
    return AuditReport.load(folder)


def _what_is_there(folder: Path) -> str:
    if (folder / "heads.json").exists():
        return (
            f"holds heads.json but not {STATE_FILE}, which names the queries that intervals are made of: it was copied "
            "without them, or comes from fenchel 0.1. Copy the whole folder, or audit again with --overwrite."
        )
    if any(folder.glob(f"shard-*-of-*/{STATE_FILE}")):
        return f"holds the shards of an audit, not yet one audit. Put them together first: fenchel merge {folder}"
    return f"holds no audit: there is no {STATE_FILE} in it. Give the folder that fenchel audit --out named."


def _refuse_other_convention(
    names: tuple[str, str], manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> None:
    """Refuse two audits whose numbers mean different things.

    Args:
        names: What the user calls them.
        manifests: Their manifests.

    Raises:
        InputError: With every convention in which they differ, and both values.
    """
    first, second = (
        {key: manifest.get(key, _UNSAID.get(key)) for key in _CONVENTIONS} for manifest in manifests
    )
    # What is taken for a template follows from the space, and for attention from the closeness, in a word each.
    but = {"convention"} if any(first[name] != second[name] for name in ("space", "closeness")) else set()
    differing = differences(first, second, but=but, said=(f"in {names[0]}", f"in {names[1]}"))
    if differing:
        raise InputError(
            f"{names[0]} and {names[1]} cannot be compared, their numbers mean different things: "
            f"{'; '.join(differing)}. {_ADVICE}"
        )


def _refuse_other_heads(names: tuple[str, str], heads: tuple[Sequence[HeadKey], Sequence[HeadKey]]) -> None:
    """Refuse two audits of other heads, since heads are compared by their place.

    Args:
        names: What the user calls them.
        heads: The heads of each.

    Raises:
        InputError: With the first layer in which they differ.
    """
    first, second = (_by_layer(keys) for keys in heads)
    for site in sorted({*first, *second}):
        ours, theirs = first.get(site), second.get(site)
        if ours != theirs:
            kind, layer = site
            raise InputError(
                f"{names[0]} and {names[1]} cannot be compared, they have other heads: {kind} layer {layer} has "
                f"{_said(ours)} in {names[0]} and {_said(theirs)} in {names[1]}. Compare models of one shape, and "
                "audit the same --layers and --heads of both."
            )


def _by_layer(keys: Sequence[HeadKey]) -> dict[tuple[str, int], list[int]]:
    result: dict[tuple[str, int], list[int]] = {}
    for key in keys:
        result.setdefault((key.kind, key.layer), []).append(key.head)
    return result


def _said(heads: list[int] | None) -> str:
    if heads is None:
        return "none"
    if heads == list(range(1, len(heads) + 1)):
        return f"heads 1 to {len(heads)}" if len(heads) > 1 else "head 1"
    return f"heads {', '.join(map(str, heads))}"
