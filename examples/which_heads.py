"""Which number predicts what the removal of an attention head does?

Commands::

    python examples/which_heads.py measure demo --data FOLDER/sick --out demo.json
    python examples/which_heads.py measure run --loader examples/fill_mask.py --out run.json
    python examples/which_heads.py table demo.json run.json --out which-heads.json

``measure`` takes the run of another example, or the sentence encoder that comes along. Half of the batches of its test
give the numbers of every head; on the other half heads are removed, one at a time and many together. The loss is that
of the run; of a sentence encoder it is 1 − cosine between the embedding of a sentence and that of the whole model.
``table`` gives Spearman's correlations, and the loss without the heads whose numbers are least.
"""

import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from transformers import HfArgumentParser

import fenchel
from data import check_columns, read_splits
from fenchel.auditing import AuditReport
from fenchel.errors import FenchelError, InputError
from fenchel.integrations.transformers import load_model
from fenchel.swap import SwapReport, swap
from task import option, several

Batch = dict[str, Any]
Place = tuple[int, int]  # a layer and a head, from 1
OF_AUDIT = (
    *("total_variation", "relative_deviation", "second_order_deviation", "predicted_deviation", "mean_error"),
    *("output_error", "gap", "certificate", "entropy", "evidence_norm"),
)
OF_SWAP = {"exact": "exact", "first_order": "another_alpha", "zero": "zero_elsewhere"}
OTHERS = ("gradient", "map_norm", "mean_output_norm", "output_norm", "layer", *OF_SWAP.values())
NUMBERS = (*OF_AUDIT, *OTHERS)
SHARES = (0.1, 0.25, 0.5)
ALPHA, ORDERS, RESAMPLES, ROWS = 0.5, 5, 2000, 50


@dataclass
class MeasureOptions:
    """What is measured."""

    loader: str = option("", "script of the example whose run it is; none for a sentence encoder")
    data: str = option("", "folder or name of a dataset with a column sentence_A, for a sentence encoder")
    rows: int = option(200, "rows of the test for the numbers, and as many others to remove heads on")
    seed: int = option(0, "of the random orders of heads")
    out: str = option("", "file of the results")


def sentence_batches(model: Any, tokenizer: Any, data: str, rows: int) -> list[Batch]:
    """Different sentences, with the change of their embeddings as the loss."""
    result = read_splits(data, ("test",), toy=False)
    check_columns(result, ["sentence_A"], data)
    texts = list(dict.fromkeys(result["test"]["sentence_A"]))[:rows]
    batches = []
    for start in range(0, len(texts), ROWS):
        inputs = dict(tokenizer(texts[start : start + ROWS], padding=True, return_tensors="pt"))
        embed = partial(embeddings, mask=inputs["attention_mask"])
        with torch.no_grad():
            loss = partial(distances, embed=embed, whole=embed(model(**inputs)))
        counted = inputs["attention_mask"].bool()
        batches.append({"inputs": inputs, "counted": counted, "loss": loss})
    return batches


def embeddings(output: Any, mask: Tensor) -> Tensor:
    """The mean of the states of each sentence, (B, width)."""
    states, mask = output["last_hidden_state"], mask.unsqueeze(-1)
    return (states * mask).sum(1) / mask.sum(1)


def distances(output: Any, embed: Any, whole: Tensor) -> Tensor:
    """1 − cosine between embeddings, (B,)."""
    return 1 - cosine_similarity(embed(output), whole, dim=-1)


def halves(batches: Sequence[Batch], rows: int) -> tuple[list[Batch], list[Batch]]:
    """Batches for the numbers and others for the effects, of all parts of the test, each of about so many rows."""
    count = max(1, min(len(batches) // 2, round(rows / ROWS)))
    if len(batches) < 2:
        raise InputError("there is one batch, and two are needed. Give more test data.")
    some = [batches[place * len(batches) // (2 * count)] for place in range(2 * count)]
    return some[::2], some[1::2]


def batch_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch["inputs"].values())))


def swapped(model: nn.Module, batches: Sequence[Batch], **how: Any) -> SwapReport:
    """What each head alone does to the loss."""
    return swap(model, None, batches, per_head=True, alphas=(ALPHA, 1.0), bootstrap=500, **how)


def effects(report: SwapReport, of: str) -> dict[Place, float]:
    """Rise of the loss by head, where another estimator, α or ablation is put into it alone."""
    records = [
        record for record in report.conditions if record["where"] == "head" and record["estimator"] == of
    ]
    return {(record["layer"], record["head"]): record["loss_difference"] for record in records}


def audit_means(report: AuditReport) -> dict[str, dict[Place, float]]:
    """Every measure of an audit by head: means over queries; of the certificate, which may be infinite, the median."""
    means = [pl.col(name).median() if name == "certificate" else pl.col(name).mean() for name in OF_AUDIT]
    result: dict[str, dict[Place, float]] = defaultdict(dict)
    for row in report.queries.group_by("kind", "layer", "head").agg(means).collect().iter_rows(named=True):
        place = report.modules[row["kind"], row["layer"]].number, row["head"]
        for name in OF_AUDIT:
            result[name][place] = row[name]
    return result


class Passes:
    """Forward passes of a model in which heads are watched, weighed or removed, before the map of their outputs.

    Args:
        model: In evaluation mode.
        report: An audit of it, which knows its layers.

    Raises:
        InputError: If a layer is neither of ``fenchel.nn`` nor built as BERT's are.
    """

    def __init__(self, model: nn.Module, report: AuditReport) -> None:
        self.model = model
        self.kinds = {int(one.number): kind for (kind, _), one in report.modules.items() if one.number}
        names = {int(one.number): one.name for one in report.modules.values() if one.number}
        self.maps, self.values, self.heads = {}, {}, {}
        for (kind, layer), one in report.modules.items():
            number = int(one.number or 0)
            self.heads[number] = max(
                head["head"] for head in report.heads if (head["kind"], head["layer"]) == (kind, layer)
            )
            self.maps[number], self.values[number] = maps_of(model, names[number])

    @contextmanager
    def replaced(self, functions: Mapping[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
        """Put what functions make of the outputs of a layer's heads, (B, m, H, d_v), in their place."""

        def hook(module: nn.Module, given: tuple[Tensor], *, layer: int) -> Tensor:
            del module
            return functions[layer](given[0].unflatten(-1, (self.heads[layer], -1))).flatten(-2)

        hooks = [
            self.maps[layer].register_forward_pre_hook(partial(hook, layer=layer)) for layer in functions
        ]
        try:
            yield
        finally:
            for one in hooks:
                one.remove()

    def loss(self, batches: Sequence[Batch], removed: Sequence[Place] = ()) -> float:
        """The mean over rows without some heads."""
        layers = {layer: [head - 1 for site, head in removed if site == layer] for layer, _ in removed}
        functions = {
            layer: partial(torch.index_fill, dim=2, index=torch.tensor(heads), value=0.0)
            for layer, heads in layers.items()
        }
        with torch.no_grad(), self.replaced(functions):
            losses = [batch["loss"](self.model(**batch["inputs"])) for batch in batches]
        return float(torch.cat(losses).double().mean())

    def gradients(self, batches: Sequence[Batch]) -> dict[Place, float]:
        """The mean over rows of |∂L/∂m| at m = 1, where m multiplies the output of a head (Michel et al. 2019)."""
        total: dict[int, Tensor] = {}
        for batch in batches:
            count = batch_rows(batch)
            masks = {layer: torch.ones(count, 1, heads, 1) for layer, heads in self.heads.items()}
            functions = {layer: one.requires_grad_().mul for layer, one in masks.items()}
            with self.replaced(functions):
                loss = batch["loss"](self.model(**batch["inputs"])).sum()
            for layer, one in zip(masks, torch.autograd.grad(loss, list(masks.values())), strict=True):
                total[layer] = total.get(layer, 0) + one.abs().sum((0, 1, 3))
        rows = sum(batch_rows(batch) for batch in batches)
        return by_place({layer: one / rows for layer, one in total.items()})

    def outputs(self, batches: Sequence[Batch]) -> dict[str, dict[Place, float]]:
        """Norms by head: of its map from states to states, of the mean over tokens of what it adds, and their mean."""
        kept: dict[int, list[Tensor]] = defaultdict(list)

        def watched(output: Tensor, layer: int, real: Tensor | None) -> Tensor:
            kept[layer].append(output.flatten(0, 1) if real is None else output[real])
            return output

        for batch in batches:
            real = {number: self.counted(batch, number) for number in self.kinds}
            functions = {number: partial(watched, layer=number, real=one) for number, one in real.items()}
            with torch.no_grad(), self.replaced(functions):
                self.model(**batch["inputs"])
        result: dict[str, dict[int, Tensor]] = {name: {} for name in ("map", "mean_output", "output")}
        for number, heads in self.heads.items():
            out = self.maps[number].weight.detach().T.unflatten(0, (heads, -1))  # (H, d_v, width)
            value = self.values[number].detach().unflatten(0, (heads, -1)).mT  # (H, width, d_v)
            added = torch.cat(kept[number]).transpose(0, 1) @ out  # (H, tokens, width)
            result["map"][number] = (value @ out).flatten(1).norm(dim=1)
            result["mean_output"][number] = added.mean(1).norm(dim=1)
            result["output"][number] = added.norm(dim=2).mean(1)
        return {f"{name}_norm": by_place(rows) for name, rows in result.items()}

    def counted(self, batch: Batch, number: int) -> Tensor | None:
        """Which queries of a layer are no padding, (B, m); None for all."""
        own = "counted" if self.kinds[number] == "encoder_self" else "counted_decoder"
        return batch.get(own, batch.get("counted"))


def maps_of(model: nn.Module, name: str) -> tuple[nn.Linear, Tensor]:
    """The map of the outputs of a layer's heads, and the weights of its map of values.

    Raises:
        InputError: If the layer is neither of ``fenchel.nn`` nor built as BERT's are.
    """
    module: Any = model.get_submodule(name)
    if getattr(module, "in_proj_weight", None) is not None:
        return module.out_proj, module.in_proj_weight.chunk(3)[2]
    if hasattr(module, "value") and name.endswith(".self"):
        dense: Any = model.get_submodule(f"{name.removesuffix('self')}output.dense")
        return dense, module.value.weight
    what = f"{name} is a {type(module).__name__}, whose map of outputs is not known"
    raise InputError(f"{what}. Add it to maps_of in which_heads.py.")


def loaded(loader: str, run: str) -> tuple[nn.Module, list[Batch]]:
    """What the function ``load`` of a script gives for a run."""
    spec: Any = spec_from_file_location(Path(loader).stem, loader)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    model, batches = module.load(run)
    return model.eval(), [dict(batch) for batch in batches]


def by_place(rows: Mapping[int, Tensor]) -> dict[Place, float]:
    """Numbers of the heads of each layer, by layer and head."""
    return {(layer, head): float(one) for layer, row in rows.items() for head, one in enumerate(row, start=1)}


def measure(options: MeasureOptions, run: str) -> dict[str, Any]:
    """All numbers of every head of a model, and what happens without it.

    Raises:
        InputError: If there is nothing to read, or a loss is missing.
    """
    started = time.monotonic()
    if options.loader:
        model, batches = loaded(options.loader, run)
    else:
        model, tokenizer, _ = load_model(run)
        batches = sentence_batches(model, tokenizer, options.data, 2 * options.rows)
    if any("loss" not in batch for batch in batches):
        raise InputError(
            f"{options.loader} gives batches without a loss, by which heads are removed. Give one."
        )
    first, second = halves(batches, options.rows)
    report = fenchel.audit(model, None, first)
    passes = Passes(model, report)
    numbers: dict[str, Mapping[Place, float]] = dict(audit_means(report))
    numbers |= {"gradient": passes.gradients(first), **passes.outputs(first)}
    before = swapped(model, first, estimators=("exact",), ablations=("zero",))
    numbers |= {name: effects(before, of) for of, name in OF_SWAP.items()}
    after = swapped(model, second, estimators=("none",), ablations=("zero", "mean"))
    zero, mean = effects(after, "zero"), effects(after, "mean")
    places = list(zero)
    numbers["layer"] = {place: place[0] for place in places}
    heads = [
        {
            "layer": place[0],
            "head": place[1],
            "zero": zero[place],
            "mean": mean[place],
            **{name: numbers[name].get(place) for name in NUMBERS},
        }
        for place in places
    ]
    whole = passes.loss(second)
    orders = {name: sorted(places, key=lambda place: numbers[name][place]) for name in NUMBERS}
    draw = random.Random(options.seed)  # noqa: S311
    for number in range(ORDERS):
        orders[f"random {number}"] = draw.sample(places, len(places))
    together = {
        name: [passes.loss(second, order[: max(1, round(share * len(places)))]) - whole for share in SHARES]
        for name, order in orders.items()
    }
    rows = [sum(batch_rows(batch) for batch in part) for part in (first, second)]
    return {
        "run": run,
        "loader": options.loader,
        "data": options.data,
        "rows": rows,
        "loss": whole,
        "heads": heads,
        "together": together,
        "seconds": round(time.monotonic() - started, 1),
    }


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of rows (R, n) of numbers; 0 where one of them is constant."""
    x, y = (rankdata(one, axis=-1) for one in (x, y))
    x, y = (one - one.mean(-1, keepdims=True) for one in (x, y))
    size = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    return (x * y).sum(-1) / np.where(size > 0, size, math.inf)


def correlation(runs: Sequence[Mapping[str, Any]], name: str, effect: str) -> dict[str, Any]:
    """The mean over runs of Spearman's ρ over heads; runs and, in each, heads are drawn anew for the interval."""
    columns = [
        np.array([[head[key] for head in run["heads"]] for key in (name, effect)], dtype=float)
        for run in runs
    ]
    draw, resampled = np.random.default_rng(0), []
    for x, y in columns:
        taken = draw.integers(len(x), size=(RESAMPLES, len(x)))
        resampled.append(spearman(x[taken], y[taken]))
    chosen = draw.integers(len(runs), size=(RESAMPLES, len(runs)))
    means = np.stack(resampled, 1)[np.arange(RESAMPLES)[:, None], chosen].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    every = [float(spearman(x[None], y[None])[0]) for x, y in columns]
    return {"rho": float(np.mean(every)), "low": float(low), "high": float(high), "runs": every}


def removed_together(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The mean over runs of the rise of the loss at each of ``SHARES``; of ``random``, over its orders too."""
    rows = [rise for run in runs for order, rise in run["together"].items() if order.split(" ")[0] == name]
    return np.mean(rows, 0).tolist()


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Correlations of each number with both effects, and what its order costs."""
    result: dict[str, Any] = {"heads": len(runs[0]["heads"]), "loss": [run["loss"] for run in runs]}
    for name in NUMBERS:
        result[name] = {effect: correlation(runs, name, effect) for effect in ("zero", "mean")}
        result[name]["together"] = removed_together(runs, name)
    result["random"] = {"together": removed_together(runs, "random")}
    return result


@dataclass
class TableOptions:
    """What is put together."""

    group: list[str] = several("of each file the name of its model; files of a name are seeds")
    out: str = option("", "file for the results of all files")


def printed(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: a table of correlations for each effect, that of zero ablation with rises of the loss."""
    head = f"| Number | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"
    yield (
        "Spearman's correlation with the rise of the loss, zero ablation; rise of the loss without "
        f"{SHARES[1]:.0%} of the heads, those with the least numbers:"
    )
    yield from ("", *head)
    for name in NUMBERS:
        yield row_of(
            name, [f"{_rho(one[name]['zero'])}; {one[name]['together'][1]:.3f}" for one in found.values()]
        )
    yield row_of("random", [f"{one['random']['together'][1]:.3f}" for one in found.values()])
    yield from ("", "Spearman's correlation with the rise of the loss, mean ablation:", "", *head)
    for name in NUMBERS:
        yield row_of(name, [_rho(one[name]["mean"]) for one in found.values()])


def _rho(cell: Mapping[str, float]) -> str:
    return f"{cell['rho']:+.2f} [{cell['low']:+.2f}, {cell['high']:+.2f}]"


def row_of(name: str, cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {name.replace('_', ' ')} | {' | '.join(cells)} |".replace(" -", " \u2212").replace(
        "[-", "[\u2212"
    )


def table(options: TableOptions, files: Sequence[str]) -> None:
    """Print tables, and write them with all numbers of the files."""
    runs = [json.loads(Path(file).read_text()) for file in files]
    names = options.group or [Path(file).stem for file in files]
    if len(names) != len(files):
        raise InputError(f"there are {len(files)} files and {len(names)} names. Give --group a name a file.")
    groups: dict[str, list[Any]] = defaultdict(list)
    for name, run in zip(names, runs, strict=True):
        groups[name].append(run)
    result = {name: summary(some) for name, some in groups.items()}
    print("\n".join(printed(result)))
    if options.out:
        Path(options.out).write_text(json.dumps({"summary": result, "runs": groups}) + "\n")


def main() -> None:
    """The command line."""
    kinds = {"measure": MeasureOptions, "table": TableOptions}
    command, *rest = sys.argv[1:] or [""]
    if command not in kinds:
        usage = "usage: which_heads.py measure RUN | table FILES; each has --help"
        if command not in ("-h", "--help"):
            sys.exit(usage)
        print(usage)
        return
    parser = HfArgumentParser(kinds[command], prog=f"which_heads.py {command}")
    parser.add_argument("given", nargs="+" if command == "table" else 1, metavar="RUN")
    try:
        options, other = parser.parse_args_into_dataclasses(rest)
        if command == "table":
            table(options, other.given)
            return
        if not options.out:
            raise InputError("no file was given for the results. Give --out FILE.")
        result = measure(options, other.given[0])
        Path(options.out).write_text(json.dumps(result) + "\n")
    except FenchelError as error:
        sys.exit(f"which_heads.py: {error}")


if __name__ == "__main__":
    main()
