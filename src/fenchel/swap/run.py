"""Replace the inference of a model's attention and measure the changes, for every condition on every batch."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fenchel.auditing.inputs import refuse_texts_as_tokenizer, running
from fenchel.auditing.manifest import described_model
from fenchel.bootstrap import Bootstrap
from fenchel.errors import ConvergenceError, InputError, ModelError, require_packages
from fenchel.io.batches import BEGINNING, Cursor
from fenchel.io.runs import ProgressClock, RunKind
from fenchel.io.storage import (
    Field,
    Form,
    ParquetTable,
    PartName,
    Record,
    polars_module,
    read_document,
    write_document,
)
from fenchel.run_options import SwapOptions, takes
from fenchel.swap.conditions import Condition, Site, layers_of_kinds, make_conditions, sites_of
from fenchel.swap.findings import wording
from fenchel.swap.observation import IGNORED, Observation, Step, Task, mean_outputs
from fenchel.swap.reading import Given
from fenchel.swap.report import FILES, SCHEMA, SavedManifest, SwapReport
from fenchel.swap.statistics import Tables
from fenchel.swap.tasks import LanguageTask, Measure, SentenceTask

# State in a swap's folder, from which an interrupted swap is resumed.
STATE_FILE = "swap-state.json"

# That of fenchel 0.2, which is not resumed.
OLD_STATE_FILE = "swap-state.safetensors"

# Subfolder with the parts of the table of measurements.
MEASUREMENTS = "measurements"

# Known only at the end, or allowed to change when a swap is resumed.
_FREE_TO_RESUME = ("documents", "tokens", "seconds", "stacks", "modules", "python", "texts", "pairs")
# Version of the state file.
_STATE_SCHEMA = 4

_MOST_EMBEDDING_BYTES = 4 * 2**30
_SAME = {torch.float64: 1e-6, torch.float32: 1e-3}
_SAME_IN_HALF = 0.1

# A ready-made batch: inputs of the model, or inputs and a target.
Batched = Mapping[str, Tensor] | Tensor | tuple[Any, Any]

# Inputs of a swap.
Readable = str | Path | Iterable[str] | Iterable[Batched]


@takes(SwapOptions)
def swap(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: Readable | None = None,
    *,
    loss: Measure | None = None,
    score: Measure | None = None,
    pairs: str | Path | Iterable[Sequence[object]] | None = None,
    **options: Any,
) -> SwapReport:
    """Measure the effect of other estimators in the attention of a trained model, against first order at other α.

    Weights are unchanged. Every batch is read once by the model itself, once under first order at each α of the
    control, and once under each estimator; nothing else differs between these conditions, masked tokens included.
    Templates are keys times the model's scaling and the evidence is the query (space ``key`` of an audit).

    A model with a language-model head is measured by its loss per token and the change of its hidden states; a model
    without one, or with pairs, by the change of its sentence embeddings (mean over tokens, norm 1), of the ranking of
    their similarities and, with scored pairs, by Spearman's correlation with the scores.

    A module with attention layers of :mod:`fenchel.nn` reads batches, and is measured by the change of its output and,
    if given, by a loss and a score of each example. Its layers keep their preference, evidence and α, which the control
    multiplies.

    Args:
        model: A transformers model, or the name or folder of one (``demo`` is the bundled encoder, without a head); or
            a module with attention layers of :mod:`fenchel.nn`; or, with ``loader``, the folder of a run.
        tokenizer: Its tokenizer; None to load the one of a named model. In its place, an image processor.
        texts: A path of texts or a table, a name of the datasets library, or strings. Or batches: each the inputs
            by name, or a tensor for the first input; or a pair of these and a target of ``loss`` and ``score``; or a
            mapping with these under ``inputs`` and its own ``loss`` and ``score``, as on the page on capture.
        loss: Function of the output of the model for B examples and their target (by default the inputs) that returns
            (B,) numbers; lower is better.
        score: Likewise; higher is better.
        pairs: Scored pairs of sentences: a table, or (sentence, sentence, score) each.
        **options: The options of :class:`fenchel.run_options.SwapOptions`.

    Returns:
        The report of the swap.

    Raises:
        InputError: If an option, the text, the pairs or the folder cannot be used.
        ModelError: If the model cannot be loaded or swapped.
        ConvergenceError: If an exact solve does not reach ``tol``.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.

    Example:
        >>> import torch
        >>> from fenchel.nn import MultiheadAttention
        >>> class Reader(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.attention = MultiheadAttention(16, 2, batch_first=True)
        ...         self.classes = torch.nn.Linear(16, 10)
        ...     def forward(self, x):
        ...         return self.classes(self.attention(x, x, x)[0].mean(1))
        >>> batches = [({"x": torch.randn(8, 5, 16)}, torch.randint(10, (8,))) for _ in range(4)]
        >>> report = swap(
        ...     Reader().eval(), None, batches, alphas=(0.8, 1.2), bootstrap=200,
        ...     loss=lambda output, target: torch.nn.functional.cross_entropy(output, target, reduction="none"),
        ...     score=lambda output, target: (output.argmax(-1) == target).double(),
        ... )
        >>> abs(report.condition("exact")["loss_difference"]) < 0.1
        True
    """
    asked = SwapOptions.checked(**options)
    measures = {name: one for name, one in (("loss", loss), ("score", score)) if one is not None}
    refuse_texts_as_tokenizer(tokenizer)
    given = Given(model, tokenizer, texts, pairs, measures, asked)
    require_packages("report", "scipy")
    require_packages("hf", "polars")
    folder, load = asked.directory, given.opened()
    with SWAP.claimed(folder, resume=asked.resume, overwrite=asked.overwrite):
        run, task = load()
        sites = sites_of(run.model)
        conditions = make_conditions(sites, asked)
        if isinstance(task, SentenceTask):
            config = run.model.config.get_text_config(decoder=True)
            _check_room(len(conditions), task.count, int(getattr(config, "hidden_size", 0)))
        manifest = {
            **described_model(run, SCHEMA),
            "space": "key",
            "batch_size": asked.batch_size,
            **asked.recorded,
            **task.description(),
        }
        state = _state(folder, manifest, len(conditions), overwrite=asked.overwrite)
        if not state.finished:
            SwapRun(run.model, task, conditions, state, sites, asked).run()
        bootstrap = Bootstrap(asked.bootstrap, asked.seed)
        eps = wording(state.manifest).eps
        tables = Tables(conditions, state.measured(), state.manifest["stacks"], task, bootstrap, eps)
        report = SwapReport(state.manifest, tables.results())
        if folder is not None and not (state.finished and all((folder / file).exists() for file in FILES)):
            report.save(folder)
            state.finished = True
            state.write(folder)
        return report


@dataclass
class SwapRun:
    """A running swap.

    Attributes:
        model: The model, with a language-model head if the task has labels.
        task: The task.
        conditions: The conditions, the model itself first.
        state: The state to start from; changed.
        sites: The attention layers.
        options: Options of the swap.
    """

    model: Any
    task: Task
    conditions: Sequence[Condition]
    state: SwapState
    sites: Sequence[Site]
    options: SwapOptions

    def __post_init__(self) -> None:
        self._means: dict[int, Tensor] | None = None
        self._saved_at = time.monotonic()
        # The first condition takes longer: means of outputs, checks and names of layers come before it.
        self._clock = ProgressClock(self.state.cursor.tokens, skip_first=True)
        self._fraction, self._begun = 0.0, False
        self._before: float = self.state.manifest.get("seconds", 0.0)

    def run(self) -> None:
        """Measure the steps from the cursor of the state on.

        If it is interrupted, complete steps are saved first, if there is a folder.

        Raises:
            InputError: If no step has a token that counts.
            ModelError: If outputs of the model cannot be compared.
            ConvergenceError: If an exact solve does not reach its tolerance.
        """
        with running(self.model, self.options, self.state.manifest, self._save):
            means = [condition for condition in self.conditions if condition.estimator == "mean"]
            ablated = {layer for condition in means for layer, _, _ in condition.replaced}
            if chosen := [site for site in self.sites if site.number in ablated]:
                self._means = mean_outputs(self.model, self.task, chosen)
            for step in self.task.steps(self.state.cursor):
                self._count(step)
        if isinstance(self.task, LanguageTask):
            labels = self.state.measured().get("labels")
            if labels is None or not float(labels.sum()):
                raise InputError(
                    f"{self.state.manifest['texts']} has no token to predict: its windows are too short. Give longer "
                    "texts."
                )
        self._save()

    def _count(self, step: Step) -> None:
        self.state.add(self._measure(step), step.batch.after)
        self._fraction = step.batch.fraction or 0.0
        if time.monotonic() - self._saved_at >= self.options.checkpoint_seconds:
            self._save()

    def _save(self) -> None:
        if self.options.directory is not None and self.state.cursor != BEGINNING:
            self.state.write(self.options.directory)
        self._saved_at = time.monotonic()

    def _measure(self, step: Step) -> dict[str, Tensor]:
        own = self._observe(self.conditions[0], step)
        if not self._begun:
            self._check_control(own, step)
            self._name_layers(step)
            self._begun = True
        self.state.manifest["stacks"] = {stack.name: len(stack.states) for stack in own.stacks}
        last = own.stacks[-1]
        # The model and its controls precede the conditions that are compared with them.
        compared = [last]
        columns: defaultdict[str, list[Tensor]] = defaultdict(list)
        for done, condition in enumerate(self.conditions, start=1):
            seen = own if condition.estimator is None else self._observe(condition, step)
            changes = [stack.changes(before) for stack, before in zip(seen.stacks, own.stacks, strict=True)]
            columns["hidden"].append(torch.cat(changes, -1).float())
            for name in ("losses", "scores", "embeddings"):
                if (values := getattr(seen, name)) is not None:
                    columns[name].append(values)
            if seen.embeddings is None:
                if condition.is_model_wide_control:
                    compared.append(seen.stacks[-1])
                elif condition.is_model_wide_estimator:
                    apart = [seen.stacks[-1].apart(other, last) for other in compared]
                    columns["distances"].append(torch.stack(apart, -1).float())
            self._report_progress(step, done / len(self.conditions))
        labels = {} if step.labels is None else {"labels": (step.labels != IGNORED).sum(-1).double()}
        return {
            "documents": torch.tensor(step.batch.documents),
            "tokens": torch.stack([stack.counts for stack in own.stacks], -1),
            **labels,
            **{name: torch.stack(column, 1) for name, column in columns.items()},
        }

    def _observe(self, condition: Condition, step: Step) -> Observation:
        try:
            with condition.installed(self.model, self.options.tol, self._means):
                return self.task.observed(self.model, step)
        except ConvergenceError as error:
            raise ConvergenceError(
                f"swapping in {condition.key}: {error} Raise --tol (the default is 1e-5 in float32), or use --dtype "
                "float64; earlier results are saved for --resume with the same options."
            ) from error

    def _check_control(self, own: Observation, step: Step) -> None:
        """Raise unless first order at α = 1 reproduces the model."""
        again = self._observe(Condition("first_order"), step)
        last, other = own.stacks[-1], again.stacks[-1]
        mean = float(other.apart(last).sum() / last.counts.sum().clamp_min(1))
        allowed = _SAME.get(last.states[-1].dtype, _SAME_IN_HALF)
        if not mean <= allowed:
            raise ModelError(
                f"{type(self.model).__name__} under first order at alpha 1 differs from itself by {mean:.1e} "
                f"(relative), but rounding explains at most {allowed:g}: its attention is not softmax(scaling·⟨q, k⟩ "
                "+ log u)·v, so its swaps are meaningless. Use a model of another family"
            )

    def _name_layers(self, step: Step) -> None:
        """Record the kinds of the layers that are swapped alone, by which audits name them."""
        if "modules" not in self.state.manifest and self.conditions[-1].layer is not None:
            modules = layers_of_kinds(self.model, self.sites, step.inputs_for(self.model))
            if modules:
                self.state.manifest["modules"] = modules

    def _report_progress(self, step: Step, share: float) -> None:
        batch, fraction = step.batch, None
        if batch.fraction is not None:
            fraction = self._fraction + share * (batch.fraction - self._fraction)
        before = self.state.cursor.tokens
        tokens = before + round(share * (batch.after.tokens - before))
        progress = self._clock.progress(batch.after.documents, tokens, fraction)
        self.state.manifest["seconds"] = round(self._before + progress.seconds, 1)
        self.options.progress_observer.advanced(progress)


def _check_room(conditions: int, sentences: int, width: int) -> None:
    """Raise if the embeddings need more than 4 GiB of memory.

    Raises:
        InputError: If they do.
    """
    needed = 4 * conditions * sentences * width
    if needed > _MOST_EMBEDDING_BYTES:
        raise InputError(
            f"{conditions} conditions times {sentences} sentences of width {width} are {needed / 2**30:.1f} GiB of "
            "embeddings; expected at most 4. Lower --max-tokens or --max-pairs, give fewer --alphas, or choose "
            "--layers and --heads."
        )


class _SavedSwap(Record):
    """The state of a swap; entries of the manifest that are not checked have to equal those of the requested swap."""

    manifest: SavedManifest
    parts: Annotated[list[PartName], Field(min_length=1)]
    cursor: Cursor
    finished: bool


# Contents of the file.
STATE_FORM = Form(
    name="saved swap",
    version=_STATE_SCHEMA,
    schema=_SavedSwap,
    advice="Restore it from a copy, or start again with --overwrite.",
)


@dataclass
class SwapState:
    """State of a swap between two steps.

    Attributes:
        manifest: Manifest of the swap.
        table: The measurements, with a row per unit; numbers, arrays by condition, and by condition and layer.
        cursor: Start of the next step.
        finished: Whether all steps were counted and all files were written.
    """

    manifest: dict[str, Any]
    table: ParquetTable
    cursor: Cursor = BEGINNING
    finished: bool = False

    def add(self, measured: Mapping[str, Tensor], after: Cursor) -> None:
        """Add a complete step: tensors by name, with its units in the first dimension."""
        columns = {name: values.numpy() for name, values in measured.items()}
        self.table.add([polars_module().DataFrame(columns)])
        self.cursor = after
        self.manifest.update(documents=after.documents, tokens=after.tokens)

    def measured(self) -> dict[str, Tensor]:
        """Measurements of all steps, in the order of the documents; empty before the first."""
        if self.cursor == BEGINNING:
            return {}
        rows = self.table.rows().clone()
        order = rows["documents"].to_torch().argsort(stable=True)
        # One column at a time: embeddings can take gigabytes.
        return {name: rows.drop_in_place(name).to_torch()[order] for name in rows.columns}

    def write(self, directory: Path) -> None:
        """Save the state into a folder: the table first, then what names its parts."""
        self.table.write()
        write_document(
            directory / STATE_FILE,
            STATE_FORM,
            {
                "manifest": self.manifest,
                "parts": self.table.names,
                "cursor": asdict(self.cursor),
                "finished": self.finished,
            },
        )
        self.table.remove_others()

    @classmethod
    def read(cls, directory: Path, *, parts: bool = True) -> SwapState:
        """Load a state from a folder.

        Args:
            directory: The swap's folder.
            parts: Whether to check the parts of the table, too.

        Raises:
            InputError: If the state or a part of the table is missing, invalid, changed, or of another version.
        """
        saved = read_document(directory / STATE_FILE, STATE_FORM)
        table = ParquetTable.read(directory / MEASUREMENTS, saved["parts"], check=parts)
        return cls(saved["manifest"], table, Cursor(**saved["cursor"]), saved["finished"])


# Files of a swap in its folder; a state of fenchel 0.2 is refused like results without their state.
SWAP = RunKind("swap", STATE_FILE, (*FILES, OLD_STATE_FILE), SwapState.read, _FREE_TO_RESUME)


def _state(folder: Path | None, manifest: dict[str, Any], conditions: int, *, overwrite: bool) -> SwapState:
    """The state from which a swap of a number of conditions starts."""
    state: SwapState | None = SWAP.resumed(folder, manifest, overwrite=overwrite)
    if state is None or folder is None:
        table = ParquetTable.temporary() if folder is None else ParquetTable(folder / MEASUREMENTS)
        return SwapState(manifest, table)
    changes: Any = state.table.scan().collect_schema()["hidden"]
    there, asked = ({"number of conditions": number} for number in (changes.shape[0], conditions))
    SWAP.refuse_other(folder, there, asked)
    return state
