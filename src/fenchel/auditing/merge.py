"""Merge the audits of shards: the union of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fenchel.auditing.audit_report import AUDIT, AuditReport, require_extras
from fenchel.auditing.examples import keep_the_farthest, keep_the_longest
from fenchel.auditing.manifest import COUNTS, OUTCOMES, PARTS, PLACES, in_order, shards_of
from fenchel.auditing.statistics import AuditStatistics
from fenchel.errors import InputError
from fenchel.io.runs import check_writable, differences
from fenchel.io.storage import ParquetTable

_FREE_TO_MERGE = OUTCOMES | PLACES | PARTS


def merge(
    directories: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    partial: bool = False,
    overwrite: bool = False,
) -> AuditReport:
    """Merge the audits of the shards of a text into the audit of the whole.

    Args:
        directories: Folders that each hold an audit, or ``shard-i-of-n`` folders that do.
        out: Folder of the merged audit. Default: the folder given, or none if several were.
        partial: Merge although shards are missing; the manifest names those that are there.
        overwrite: Replace the audit of something else that ``out`` may hold.

    Returns:
        The merged audit; it does not depend on the order of ``directories``.

    Raises:
        InputError: If a folder holds no audit or an unfinished one, if the audits are not of the same model,
            text and options, if a shard is there twice, or, without ``partial``, if one is missing.
        OutputError: If ``out`` cannot be written to.
    """
    given = [directories] if isinstance(directories, str | Path) else list(directories)
    if not given:
        raise InputError("there is nothing to merge: no folder was given.")
    if out is None and len(given) == 1:
        out = given[0]
    target = None if out is None else Path(out).expanduser()
    sources = list[Path]()
    for folder in (Path(path).expanduser() for path in given):
        shards = sorted(shard for shard in folder.glob("shard-*-of-*") if shard.is_dir())
        sources += shards or [folder]
    states = [AuditReport.load(folder) for folder in sources]
    if target is not None and any(folder.resolve() == target.resolve() for folder in sources):
        raise InputError(
            f"{target} is one of the audits to be merged and would be overwritten. "
            "Choose another folder with --out."
        )

    manifests = [state.manifest for state in states]
    _check_compatible(sources, manifests)
    manifest = _merged(manifests, partial=partial)
    if target is not None:
        require_extras()
        check_writable(target)
    words = {number: text for state in states for number, text in state.statistics.words.items()}
    tables = [state.statistics.table for state in states]
    twins = [state.twin.table for state in states if state.twin is not None]
    report = AuditReport(manifest, AuditStatistics(_together(tables), words))
    if len(twins) == len(states):
        report.twin = AuditStatistics(_together(twins), words)
    for state in states:
        keep_the_farthest(
            report.far_queries, (example for some in state.far_queries.values() for example in some)
        )
        keep_the_longest(report.matrices, state.matrices.values())
        report.modules |= state.modules
    if not report.heads:
        raise InputError(f"none of the {len(sources)} audits has a token; there is nothing to report.")
    if target is not None:
        report.save(target, overwrite=overwrite or _is_earlier_merge(target, report))
    return report


def _check_compatible(folders: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> None:
    """Raise unless the audits in these folders are different shards of one audit."""
    holders: dict[int, Path] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        (indices, count), (_, first_count) = shards_of(manifest), shards_of(manifests[0])
        differing = differences(
            manifests[0], manifest, ignored=_FREE_TO_MERGE, labels=("in the first", "in the second")
        )
        if count != first_count:
            differing.append(f"number of shards: {first_count} in the first, {count} in the second")
        if differing:
            raise InputError(
                f"{folders[0]} and {folder} are not parts of one audit; they differ in {'; '.join(differing)}."
            )
        if twice := sorted(indices & holders.keys()):
            raise InputError(
                f"{holders[twice[0]]} and {folder} both hold shard {twice[0]}/{count}, which would count twice. Leave "
                "one of them out."
            )
        holders |= dict.fromkeys(indices, folder)


def _merged(manifests: Sequence[dict[str, Any]], *, partial: bool) -> dict[str, Any]:
    """Merge manifests: equal entries, sums of counts, and all places.

    Raises:
        InputError: If a shard is missing, unless ``partial``.
    """
    (_, count), *_ = parts = [shards_of(manifest) for manifest in manifests]
    shards = sorted(frozenset[int]().union(*(indices for indices, _ in parts)))
    missing = [f"{index}/{count}" for index in range(count) if index not in shards]
    if missing and not partial:
        named = f"shard {missing[0]} is" if len(missing) == 1 else f"shards {', '.join(missing)} are"
        raise InputError(f"{named} missing. Audit what is missing, or merge what is there with --partial.")
    merged = dict(manifests[0])
    for key in COUNTS & {name for manifest in manifests for name in manifest}:
        merged[key] = round(sum(manifest.get(key, 0) for manifest in manifests), 1)
    for key in PLACES:
        result = {
            place
            for manifest in manifests
            if manifest.get(key) is not None
            # A merged audit already names several.
            for place in ([manifest[key]] if manifest["merged_from"] is None else manifest[key].split(", "))
        }
        merged[key] = ", ".join(sorted(result)) if result else None
    outcomes = {manifest["twin"] for manifest in manifests}
    merged["twin"] = outcomes.pop() if len(outcomes) == 1 else "not audited on every shard"
    merged["shard"] = f"{','.join(map(str, shards))}/{count}" if missing else "0/1"
    merged["merged_from"] = len(shards)
    return in_order(merged)


def _together(tables: Sequence[ParquetTable]) -> ParquetTable:
    """The parts of all tables, in an order that does not depend on that of the tables."""
    paths = (path for table in tables for path in table.parts)
    return ParquetTable(tables[0].folder, sorted(paths, key=lambda path: (path.name, str(path))))


def _is_earlier_merge(target: Path, report: AuditReport) -> bool:
    """Whether the folder holds an earlier merge of shards of the same audit, which may be replaced."""
    if (there := AUDIT.saved(target)) is None or there.manifest.get("merged_from") is None:
        return False
    return not differences(there.manifest, report.manifest, ignored=_FREE_TO_MERGE)
