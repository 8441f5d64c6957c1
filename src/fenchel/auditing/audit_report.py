"""The report of an audit: the files and pages that show its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from fenchel.auditing.manifest import OUTCOMES
from fenchel.auditing.report import notebook_html, render_html
from fenchel.auditing.state import OLD_STATE_FILE, STATE_FILE, AuditState
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.table import QUERIES, TWIN_QUERIES
from fenchel.errors import InputError, require_packages
from fenchel.io.runs import RunKind, atomic_path, check_writable, write_text
from fenchel.io.storage import polars_module, write_json

# The records of the untrained twin, as those of the model in ``heads.json``.
TWIN_FILE = "twin.json"

_DATA_FILES = ("heads.json", "heads.parquet", "summary.json", "examples.json", "manifest.json")
_PAGE = "report.html"
_WHOLE_NUMBERS = ("layer", "head", "queries", "population", "certificate_unbounded", "not_converged")


def require_extras() -> None:
    """Raise unless the packages that writing a report needs are installed.

    Raises:
        MissingExtraError: If a package is missing.
    """
    require_packages("hf", "polars")
    require_packages("report", "jinja2")


class AuditReport(AuditState):
    """Results of an audit, and the files and pages that show them.

    Attributes:
        manifest: Model, text, versions and options.
        statistics: Distribution of every metric over the queries of every head.
        far_queries: For each head, queries with large total variation, the farthest first, of different patterns and
            windows; ``examples`` are the first of each.
        twin: Distribution of every metric over the same queries in the model's untrained twin; None without one.
        modules: The attention module of every layer.
        effects: Changes when single heads infer exactly, from a swap; None without one.
        matrices: For each head, its attention weights in one sentence.
    """

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write the files of the audit into a folder, each atomically, ``report.html`` last.

        Args:
            directory: The folder; created if it does not exist.
            overwrite: Replace another audit in the folder.

        Returns:
            Path of ``report.html``.

        Raises:
            InputError: If the folder holds an audit with another manifest and ``overwrite`` is false.
            OutputError: If something cannot be written.
            MissingExtraError: If a package that a file needs is not installed.
        """
        require_extras()
        directory = Path(directory).expanduser()
        check_writable(directory)
        if not overwrite and (there := AUDIT.saved(directory)) is not None:
            AUDIT.refuse_other(directory, there.manifest, self.manifest, ignored=OUTCOMES)
        words, twin = self.statistics.words, self.twin
        state = replace(
            self,
            statistics=AuditStatistics(self.statistics.table.copy_to(directory / QUERIES), words),
            twin=twin and AuditStatistics(twin.table.copy_to(directory / TWIN_QUERIES), words),
            finished=True,
        )
        page = self.write_files(directory)
        state.write(directory)
        return page

    def write_files(self, directory: Path) -> Path:
        """Write all files but the state, which marks the audit as finished.

        Args:
            directory: An existing folder.

        Returns:
            Path of ``report.html``, which is not written if no head was audited (a shard without documents).
        """
        write_json(directory / "heads.json", self.heads)
        self._write_parquet(directory / "heads.parquet")
        write_json(directory / "summary.json", self.summary)
        write_json(directory / "examples.json", list(self._examples()))
        if self.twin is None:
            (directory / TWIN_FILE).unlink(missing_ok=True)
        else:
            write_json(directory / TWIN_FILE, self.twin_heads)
        write_json(directory / "manifest.json", self.manifest)
        page = directory / _PAGE
        if self.heads:
            write_text(page, render_html(self))
        return page

    def _examples(self) -> Iterator[dict[str, Any]]:
        """The farthest query of each head, with further ones and the attention matrix."""
        for key in self.statistics.keys():  # noqa: SIM118
            if key in self.far_queries:
                first, *further = (example.to_json() for example in self.far_queries[key])
                matrix = asdict(self.matrices[key]) if key in self.matrices else None
                yield first | {"further": further, "matrix": matrix}

    def is_written(self, directory: Path) -> bool:
        """Whether all files of ``write_files`` are in the folder."""
        names = _DATA_FILES + ((_PAGE,) if self.heads else ()) + (() if self.twin is None else (TWIN_FILE,))
        return all((directory / name).exists() for name in names)

    def _write_parquet(self, path: Path) -> None:
        pl = polars_module()
        names = self.statistics.record_keys()
        kinds = {"kind": pl.String, **dict.fromkeys(_WHOLE_NUMBERS, pl.Int64)}
        frame = pl.DataFrame(self.heads, schema={name: kinds.get(name, pl.Float64) for name in names})
        with atomic_path(path) as temporary:
            frame.write_parquet(temporary)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Load an audit from its folder.

        Raises:
            InputError: If the folder contains no audit, or a damaged or unfinished one.
        """
        folder = Path(directory)
        if not folder.exists():
            reason = "does not exist; expected the folder of an audit, from fenchel audit --out."
        elif not folder.is_dir():
            reason = f"is a file; expected the folder of an audit that holds {STATE_FILE}."
        elif any((folder / name).exists() for name in (STATE_FILE, OLD_STATE_FILE)):
            report = cls.read(folder)
            if report.finished:
                return report
            tokens = report.cursor.tokens
            reason = f"holds an audit that was interrupted after {tokens} tokens. Finish it with --resume."
        elif (folder / "heads.json").exists():
            reason = (
                f"holds heads.json but not {STATE_FILE}, which has the queries: it was copied without them, or comes "
                "from fenchel 0.1. Copy the whole folder, or audit again with --overwrite."
            )
        elif (folder / "swap.json").exists():
            reason = "holds a swap; expected the folder of an audit, from fenchel audit --out."
        elif any(folder.glob(f"shard-*-of-*/{STATE_FILE}")):
            reason = f"holds the shards of an audit. Merge them first: fenchel merge {folder}"
        else:
            reason = (
                f"holds no audit: {STATE_FILE} is missing. Give the folder of fenchel audit --out; if that audit has "
                "not saved anything yet, run it again with --resume."
            )
        raise InputError(f"{directory} {reason}")

    def _repr_html_(self) -> str:
        return notebook_html(self)


# Other versions and devices may round differently, and files would differ from those of an uninterrupted audit.
# Files of an audit in its folder.
AUDIT = RunKind("audit", STATE_FILE, ("heads.json",), AuditReport.read, OUTCOMES | {"python", "texts"})
