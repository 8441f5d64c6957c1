"""Every family of the installed transformers that attends: one tiny random model each, swapped and audited.

``python -m benchmarks.families`` writes ``results/families.json`` and a part of ``docs/transformers.md``. With ``--only
NAME ...`` the file keeps what it has of the other families; ``--seed`` draws other weights and inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import re
import signal
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.family_models import (
    BATCH,
    Inputs,
    Shrinking,
    built,
    model_class,
    small_enough,
)
from benchmarks.recording import RESULTS, record
from fenchel import Capture, audit
from fenchel.errors import CaptureError, FenchelError
from fenchel.integrations.registry import quiet
from fenchel.integrations.transformers import use_backend

OUTCOMES = ("works", "refused", "wrong", "not built", "no attention")
TOLERANCE = 1e-4
SECONDS = 20.0  # of process time, for one family
MOST_INPUTS = 14
MOST_NAMES = 10  # of families, in a cell of the page
PAGE = Path(__file__).parents[1] / "docs" / "transformers.md"
BEGIN, END = "<!-- families -->", "<!-- end of families -->"


@dataclass
class Outcome:
    """What became of a family.

    Attributes:
        family: Its model type.
        model: The class that was built.
        outcome: "works", "refused", "wrong" (another output, or an error that is not ours), "not built" (no tiny
            model, or no input that it takes) or "no attention".
        reason: Why, in one line.
        difference: Largest of the outputs from those of eager attention, over the largest output if above 1.
        inputs: Names of what the model was given.
    """

    family: str
    model: str = ""
    outcome: str = "not built"
    reason: str = ""
    difference: float | None = None
    inputs: tuple[str, ...] = ()


# Comparison.


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def _real(tensor: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """What is no padding."""
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = inputs.get(name)
        if mask is not None and tensor.ndim > 2 and tensor.shape[:2] == mask.shape:
            return tensor[mask == 1]
    return tensor


def _run(model: Any, inputs: dict[str, Any], seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    takes = inspect.signature(model.forward).parameters
    without = {"use_cache": False} if "use_cache" in takes else {}
    with torch.no_grad():
        output = model(**inputs, **without)
    return [_real(tensor, inputs).clone() for tensor in _tensors(output)]


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    if [one.shape for one in found] != [one.shape for one in expected]:
        return float("inf")
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.numel():
            largest = max(1.0, float(other.abs().max()))
            off = float((one - other).abs().max()) / largest
            worst = max(worst, off if off == off else float("inf"))
    return worst


def _heads_disagree(heads: Capture) -> float:
    """How far softmax(⟨t, λ⟩ + log u)·v is from what heads handed on, at queries that see something."""
    worst = 0.0
    for head in heads:
        scores = head.dual @ head.templates.mT + head.log_preference
        live = scores.isfinite().any(-1, keepdim=True)
        result = scores.masked_fill(~live, 0).softmax(-1) @ head.values
        off = ((result - head.output) * live).abs().max() / max(1.0, float(head.values.abs().max()))
        worst = max(worst, float(off))
    return worst


class _WrongError(Exception):
    """A silent disagreement."""


def _checked(model: Any, inputs: dict[str, Any], seed: int) -> float:
    """Swap and audit; the largest difference."""
    expected = _run(model, inputs, seed)
    with use_backend(model, "first_order"):
        result = _run(model, inputs, seed)
    worst = _difference(result, expected)
    if not worst <= TOLERANCE:
        raise _WrongError(f"swapped to first order, the output is off by {worst:.1e}")
    with Capture(model) as heads:
        result = _run(model, inputs, seed)
    off = max(_difference(result, expected), _heads_disagree(heads))
    if not off <= TOLERANCE:
        raise _WrongError(f"captured, the output is off by {off:.1e}")
    with use_backend(model, "exact"):
        _run(model, inputs, seed)
    batch = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    audit(model, None, [batch], space="key", baseline="none", queries="all")
    return max(worst, off)


def _attends(model: nn.Module) -> bool:
    return any(
        re.search(r"atte?n", type(module).__name__, re.IGNORECASE)
        or isinstance(module, nn.MultiheadAttention)
        for module in model.modules()
    )


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {SECONDS:g} s")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: " + str(error).strip().split("\n")[0][:300]


_OF_SIZES = r"size|shape|index|range|divisible|channels|heads|stride|zero"


def outcome_of(family: str, seed: int = 0) -> Outcome:
    """Build, swap and audit one family."""
    result = Outcome(family)
    try:
        config_type = transformers.CONFIG_MAPPING[family]
        cls = model_class(family, config_type)
        if cls is None:
            result.reason = "no model class"
            return result
        result.model = cls.__name__
        base = config_type()
    except Exception as error:
        result.reason = f"configuration: {_line(error)}"
        return result
    reasons = []
    for how in ("small", "narrow", "short"):
        try:
            config = Shrinking(how)(base)
            if not small_enough(cls, config):
                reasons.append("too large")
                continue
            model = built(cls, config, seed)
        except TimeoutError:
            raise
        except Exception as error:
            reasons.append(f"building: {_line(error)}")
            continue
        if not _attends(model):
            result.outcome = "no attention"
            return result
        if _tried(model, seed, result, reasons) or not re.search(_OF_SIZES, reasons[-1]):
            break
    if result.outcome == "not built":
        result.reason = " | ".join(dict.fromkeys(reasons))
    return result


def _tried(model: Any, seed: int, found: Outcome, reasons: list[str]) -> bool:
    """Swap and audit with the first inputs with which both work; whether there are inputs that the model takes."""
    why, runs = "", 0
    candidates = Inputs(model, seed).sets()
    for _ in range(MOST_INPUTS):
        try:
            inputs = next(candidates, None)
        except TimeoutError:
            raise
        except Exception as error:
            why = why or f"inputs: {_line(error)}"
            break
        if inputs is None:
            break
        try:
            outputs = _run(model, inputs, seed)
        except TimeoutError:
            raise
        except Exception as error:
            why = why or f"input {sorted(inputs)}: {_line(error)}"
            continue
        if not outputs or not all(bool(one.isfinite().all()) for one in outputs):
            why = why or "its output is not finite"
            continue
        runs += 1
        try:
            try:
                found.difference = _checked(model, inputs, seed)
            except CaptureError as error:
                if not re.search(
                    "times in one forward|one input per batch|padding mask of the batch", str(error)
                ):
                    raise
                # Such a module attends once for each image, or to all images at once.
                inputs = {name: one[: len(one) // BATCH] for name, one in inputs.items()}
                found.difference = _checked(model, inputs, seed)
            found.outcome, found.reason, found.inputs = "works", "", tuple(inputs)
            return True
        except TimeoutError:
            raise
        except FenchelError as error:
            if runs == 1:
                found.outcome, found.reason, found.inputs = "refused", _line(error), tuple(inputs)
        except Exception as error:
            found.outcome, found.inputs = "wrong", tuple(inputs)
            found.reason = str(error) if isinstance(error, _WrongError) else _line(error)
            return True
        if runs == 4:
            break
    reasons.append(why or "no inputs known")
    return runs > 0


# Results.

_REASONS = (
    ("without the attention registry|has no module that calls", "compute attention outside of the registry"),
    ("passes 'softcap'", "cap their scores: first order only, no audit"),
    ("causal and passes no mask", "are causal and make no mask"),
    ("times in one forward", "have a module that attends several times in a forward pass"),
    (
        "did not attend|never called|no attention of .* was reached",
        "have attention that the inputs do not reach",
    ),
    ("padding mask of the batch", "attend to padding of which nothing is known"),
    (
        r"(attention_mask|position_bias) (of|\(.*\) has) shape",
        "pass a mask that does not fit queries and keys",
    ),
    ("passes '", "pass an argument whose effect is not known"),
    ("differs by", "change their scores in a way that no argument shows"),
    ("needs decoder_input_ids", "have a decoder whose inputs are not known"),
    ("different dtype|batch size|no batch dimension|of shape", "take inputs that an audit does not read"),
)


def _group(reason: str) -> str:
    return next((words for pattern, words in _REASONS if re.search(pattern, reason)), "have another reason")


def _named(families: Sequence[str]) -> str:
    return f"{len(families)} families" if len(families) > MOST_NAMES else ", ".join(sorted(families))


def page(found: Mapping[str, Any]) -> str:
    """The part of the page on models of transformers that says which families work."""
    refused: dict[str, list[str]] = {}
    for family, reason in found["refused"].items():
        refused.setdefault(_group(reason), []).append(family)
    unknown = [*found["not built"]]
    attending = sum(len(found[outcome]) for outcome in ("works", "refused", "wrong"))
    worst = max(found["works"].values(), default=0.0)
    lines = [
        f"Of {attending} families of transformers {found['transformers']} for which a tiny random model could be "
        f"built, {len(found['works'])} work: they can be swapped and audited, and first order equals their own output "
        f"to {worst:.0e} of the largest entry (`python -m benchmarks.families`; `benchmarks/results/families.json` "
        "names them all). "
        "The others are refused:",
        "",
        "| They | Families |",
        "|---|---|",
        *(
            f"| {reason} | {_named(families)} |"
            for reason, families in sorted(refused.items(), key=lambda one: -len(one[1]))
        ),
        "",
    ]
    if found["wrong"]:
        lines += [f"**Known defects ({len(found['wrong'])}):** {_named(list(found['wrong']))}.", ""]
    lines.append(
        f"Not tried: {len(unknown)} families for which no tiny model could be built or whose inputs are not known, and "
        f"{len(found['no attention'])} without attention."
    )
    return "\n".join(lines)


def _collected(
    outcomes: Iterable[Outcome], earlier: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    result = {outcome: dict(earlier.get(outcome, {})) for outcome in OUTCOMES}
    for one in outcomes:
        for families in result.values():
            families.pop(one.family, None)
        result[one.outcome][one.family] = one.difference if one.outcome == "works" else one.reason
    return {outcome: dict(sorted(families.items())) for outcome, families in result.items()}


def write(outcomes: Iterable[Outcome], seed: int) -> None:
    """Write the results and the page; families that were not run keep what the file has of them."""
    file = RESULTS / "families.json"
    earlier = json.loads(file.read_text()) if file.exists() else {}
    result = {"transformers": transformers.__version__, "seed": seed, **_collected(outcomes, earlier)}
    with contextlib.redirect_stdout(io.StringIO()):
        record("families", result)
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{page(result)}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some families; the file keeps the others")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _out_of_time)
    outcomes: list[Outcome] = []
    with quiet():
        for family in options.only or list(transformers.CONFIG_MAPPING):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                result = outcome_of(family, options.seed)
            except TimeoutError as error:
                result = Outcome(family, reason=str(error))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            outcomes.append(result)
            print(json.dumps(asdict(result)), flush=True)
    if not options.dry:
        write(outcomes, options.seed)
    print(Counter(one.outcome for one in outcomes))


if __name__ == "__main__":
    main()
