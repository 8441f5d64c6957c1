"""A saved swap: whatever byte, tensor or field of it is wrong is said, and no table is made from it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.errors import InputError
from fenchel.io.batches import Cursor
from fenchel.io.storage import read_tensors, write_tensors
from fenchel.swap import SwapReport
from fenchel.swap.run import STATE_FILE, STATE_FORM, SwapState
from tests.auditing.small_audits import Interrupting
from tests.damage import field, refuses
from tests.swap.small_swaps import SCORED, small_swap

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"estimators": ["exact"], "alphas": (0.7, 1.0)}

Saved = tuple[dict[str, torch.Tensor], Any]


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of an interrupted swap of a language model and of a finished one of sentences; not to be changed."""
    root = tmp_path_factory.mktemp("swaps")
    with pytest.raises(KeyboardInterrupt):
        small_swap(
            "bert", **OPTIONS, directory=root / "language", observer=Interrupting(6, KeyboardInterrupt())
        )
    small_swap("bert", **OPTIONS, pairs=SCORED, directory=root / "sentences")
    return {"language": root / "language", "sentences": root / "sentences"}


@pytest.fixture(params=["language", "sentences"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(saved_once: dict[str, Path], kind: str, tmp_path: Path) -> Path:
    copy = tmp_path / kind
    shutil.copytree(saved_once[kind], copy)
    return copy


@pytest.fixture
def saved(folder: Path) -> Saved:
    return read_tensors(folder / STATE_FILE, STATE_FORM)


def refused(folder: Path, *changed: Any) -> str:
    """What is said of a state with other tensors and another description."""
    write_tensors(folder / STATE_FILE, STATE_FORM, *changed)
    return refuses(folder / STATE_FILE, lambda: SwapState.read(folder))


def resumed(folder: Path, kind: str, **options: Any) -> SwapReport:
    given = {"pairs": SCORED} if kind == "sentences" else {}
    return small_swap("bert", **OPTIONS, **given, directory=folder, **{"resume": True, **options})


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Saved], object]:
    return lambda saved: saved[0].update({name: change(saved[0][name].clone()).contiguous()})


def _filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return changed


def _field(*path: str, to: Any) -> Callable[[Saved], object]:
    return lambda saved: field(*path, to=to)(saved[1])


TENSORS = ("documents", "tokens", "hidden")

WRONG: dict[str, Callable[[Saved], object]] = {
    **{f"no {name}": lambda saved, name=name: saved[0].pop(name) for name in TENSORS},
    **{f"{name} of one unit less": _tensor(name, lambda one: one[1:]) for name in TENSORS},
    **{f"{name} of one dimension more": _tensor(name, lambda one: one[None]) for name in TENSORS},
    **{f"{name} of another type": _tensor(name, torch.Tensor.half) for name in TENSORS},
    **{f"negative {name}": _tensor(name, _filled(-1)) for name in TENSORS},
    "changes that are no numbers": _tensor("hidden", _filled(float("nan"))),
    "one layer less": _tensor("hidden", lambda one: one[:, :, 1:]),
    "one arm less": _tensor("hidden", lambda one: one[:, 1:]),
    "documents in another order": _tensor("documents", _filled(10**6)),
    "no tensors": lambda saved: saved[0].clear(),
    "a tensor more": lambda saved: saved[0].update(more=torch.zeros(1)),
    "no model": _field("manifest", "model", to=KeyError),
    "alphas x": _field("manifest", "alphas", to=["x"]),
    "a negative alpha": _field("manifest", "alphas", to=[-1.0, 1.0]),
    "another task": _field("manifest", "task", to="telepathy"),
    "stacks that are no numbers": _field("manifest", "stacks", to={"layers": "two"}),
    "other stacks": _field("manifest", "stacks", to={"layers": 9}),
    "another cursor": _field("cursor", to={"chapter": 1}),
    "no document": _field("cursor", "document", to=KeyError),
    "the beginning": _field("cursor", to=asdict(Cursor())),
    "negative documents": _field("cursor", "documents", to=-1),
    "half a token": _field("cursor", "tokens", to=0.5),
    "finished 1": _field("finished", to=1),
    "more": _field("more", to=1),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_no_swap_can_have_saved_is_refused_though_it_is_sealed(
    folder: Path, saved: Saved, change: Callable[[Saved], object]
) -> None:
    change(saved)
    refused(folder, *saved)


@pytest.mark.parametrize("kind", ["language"])
@pytest.mark.parametrize("name", ["losses", "distances", "labels"])
def test_what_a_language_model_gave_is_checked(folder: Path, saved: Saved, name: str) -> None:
    tensors, described = saved
    right = tensors[name]
    for wrong in (right[..., 1:], right.half(), -right - 1, right * float("nan")):
        assert name in refused(folder, {**tensors, name: wrong.contiguous()}, described)


@pytest.mark.parametrize("kind", ["sentences"])
def test_sentences_that_are_not_there_are_refused(folder: Path, saved: Saved) -> None:
    tensors, described = saved
    other = {**described, "cursor": {**described["cursor"], "document": 5}}
    for documents, said in ((tensors["documents"] + 10**6, described), (tensors["documents"], other)):
        assert "of 24 sentences" in refused(folder, {**tensors, "documents": documents}, said)


@pytest.mark.parametrize("kind", ["sentences"])
def test_embeddings_of_other_arms_are_another_swap(folder: Path, saved: Saved) -> None:
    tensors, described = saved
    fewer = {name: tensors[name][:, 1:].contiguous() for name in ("hidden", "embeddings")}
    write_tensors(folder / STATE_FILE, STATE_FORM, {**tensors, **fewer}, described)
    with pytest.raises(InputError, match=r"another swap than .*; they differ in number of arms: 3 there, 4"):
        resumed(folder, "sentences")


@pytest.mark.parametrize("change", [{"bootstrap": -100}, {"seed": "0"}, {"per_head": None}])
def test_an_option_that_was_changed_is_another_swap(
    folder: Path, saved: Saved, kind: str, change: dict[str, Any]
) -> None:
    saved[1]["manifest"] |= change
    write_tensors(folder / STATE_FILE, STATE_FORM, *saved)
    name = next(iter(change)).replace("_", " ")
    with pytest.raises(InputError, match=f"another swap than the one asked for; they differ in {name}: "):
        resumed(folder, kind)


@pytest.mark.parametrize("name", ["swap-sick-test.json", "swap-sick-1500.json"])
def test_published_tables_without_a_digest_are_read(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / "docs" / "results" / name, tmp_path / "swap.json")
    report = SwapReport.load(tmp_path)
    assert report.finding == json.loads((tmp_path / "swap.json").read_text())["finding"]
