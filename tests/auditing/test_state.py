"""A saved audit: whatever byte, tensor or field of it is wrong is said, and nothing is reported from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.merge import merge
from fenchel.auditing.state import STATE_FILE, STATE_FORM, AuditState
from fenchel.errors import InputError
from fenchel.io.storage import read_tensors, write_tensors
from tests.auditing.small_audits import Interrupting, files_of, small_audit
from tests.damage import damaged_contents, refuses, refuses_every_damage

Saved = tuple[dict[str, torch.Tensor], Any]


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished audit; not to be changed."""
    folder = tmp_path_factory.mktemp("audit")
    small_audit(directory=folder, baseline="twin")
    return folder


@pytest.fixture
def folder(saved_once: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "audit"
    shutil.copytree(saved_once, copy)
    return copy


def test_any_damage_is_refused(folder: Path) -> None:
    refuses_every_damage(folder / STATE_FILE, lambda: AuditState.read(folder))


def test_every_command_refuses_a_damaged_state_and_leaves_every_file(folder: Path) -> None:
    path = folder / STATE_FILE
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[-3] ^= 16
    path.write_bytes(bytes(damaged))
    before = files_of(folder)
    assert "--overwrite" in refuses(path, lambda: small_audit(directory=folder, resume=True))
    refuses(path, lambda: small_audit(directory=folder))
    refuses(path, lambda: AuditReport.load(folder))
    refuses(path, lambda: merge([folder], folder.parent / "out", partial=True))
    assert files_of(folder) == before
    small_audit(directory=folder, overwrite=True, baseline="twin")
    assert path.read_bytes() == content


def _dropped(name: str) -> Callable[[Saved], None]:
    def apply(saved: Saved) -> None:
        del saved[0][f"encoder_self.1.{name}"]

    return apply


def _twice(saved: Saved) -> None:
    saved[1]["examples"].append({**saved[1]["examples"][0], "position": 2})


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Saved], None]:
    def apply(saved: Saved) -> None:
        saved[0][f"encoder_self.1.{name}"] = change(saved[0][f"encoder_self.1.{name}"]).contiguous()

    return apply


def _entry(index: int, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return changed


def _field(*path: str | int, to: Any) -> Callable[[Saved], None]:
    def apply(saved: Saved) -> None:
        found = saved[1]
        for name in path[:-1]:
            found = found[name]
        if to is KeyError:
            del found[path[-1]]
        else:
            found[path[-1]] = to

    return apply


def _without_layer(saved: Saved) -> None:
    for name in [name for name in saved[0] if name.startswith("twin.encoder_self.2.")]:
        del saved[0][name]
    saved[1]["twin"]["layers"].pop()


TENSORS = (
    "bins",
    "counts",
    "exponents",
    "mantissas",
    "maxima",
    "totals",
    "queries",
    "newton_steps",
    "not_converged",
    "class_sums",
    "type_queries",
    "token_ids",
    "token_moves",
    "rarer_moves",
)

WRONG: dict[str, Callable[[Saved], None]] = {
    **{f"no {name}": _dropped(name) for name in TENSORS},
    **{f"one {name} too many": _tensor(name, lambda one: torch.cat([one, one[-1:] + 1])) for name in TENSORS},
    **{f"{name} of another type": _tensor(name, lambda one: one.to(torch.int32)) for name in TENSORS},
    **{f"{name} as a matrix": _tensor(name, lambda one: one[None]) for name in TENSORS},
    **{
        f"negative {name}": _tensor(name, _entry(0, -1))
        for name in TENSORS
    },
    "a tensor of no layer": lambda saved: saved[0].update({"cross.9.bins": torch.zeros(1)}),
    "a tensor of no name": lambda saved: saved[0].update({"": torch.zeros(1)}),
    "maxima that are not numbers": _tensor("maxima", _entry(0, float("nan"))),
    "maxima that are infinite": _tensor("maxima", _entry(0, float("inf"))),
    "maxima above what was counted": _tensor("maxima", lambda one: one * 2),
    "counts elsewhere": _tensor("counts", lambda one: one.flip(0)),
    "more counts": _tensor("counts", lambda one: one + 1),
    "bins in another order": _tensor("bins", lambda one: one.flip(0)),
    "bins of no row": _tensor("bins", lambda one: one + 10**9),
    "other bins": _tensor("bins", lambda one: one + 256),
    "sums too large": _tensor("mantissas", lambda one: one * 2),
    "one sum too small": _tensor("mantissas", _entry(0, 1)),
    "sums of other exponents": _tensor("exponents", lambda one: one + 1),
    "other totals": _tensor("totals", lambda one: one + 1),
    "other queries": _tensor("queries", lambda one: one + 1),
    "more misses than queries": _tensor("not_converged", lambda one: one + 10**6),
    "heads out of range": _field("statistics", "layers", 0, "heads", to=[0, 1, 2, 3]),
    "a head twice": _field("statistics", "layers", 0, "heads", to=[1, 1, 2, 3]),
    "a million heads": _field("statistics", "layers", 0, "heads", to=list(range(1, 10**6))),
    "fewer heads": _field("statistics", "layers", 0, "heads", to=[1]),
    "another kind": _field("statistics", "layers", 0, "kind", to="sideways"),
    "another layer": _field("statistics", "layers", 0, "layer", to=7),
    "a layer twice": _field("statistics", "layers", 1, "layer", to=1),
    "no layers": _field("statistics", "layers", to=KeyError),
    "other metrics": _field("statistics", "metrics", to=["beauty"]),
    "other bins in words": _field("statistics", "grid", to="fine"),
    "other classes": _field("statistics", "classes", to=["beauty"]),
    "words without an id": _field("statistics", "words", 0, to=["w1"]),
    "more weight than queries": _tensor("class_sums", lambda one: one * 2),
    "more that moves in tokens": _tensor("token_moves", lambda one: one + 2**34),
    "no twin": _field("twin", to=None),
    "a twin of fewer heads": _field("twin", "layers", 0, "heads", to=[1]),
    "a twin without metrics": _field("twin", "metrics", to=[]),
    "a tensor of the twin too few": lambda saved: saved[0].__delitem__("twin.encoder_self.1.queries"),
    "a layer of the twin too few": _without_layer,
    "another baseline": _field("manifest", "baseline", to="sister"),
    "no modules": _field("modules", to=KeyError),
    "a module of another kind": _field("modules", 0, "kind", to="sideways"),
    "no model": _field("manifest", "model", to=KeyError),
    "an empty model": _field("manifest", "model", to=""),
    "alpha x": _field("manifest", "alpha", to="x"),
    "alpha 0": _field("manifest", "alpha", to=0),
    "alpha true": _field("manifest", "alpha", to=True),
    "another space": _field("manifest", "space", to="outer"),
    "negative documents": _field("manifest", "documents", to=-3),
    "half a token": _field("manifest", "tokens", to=0.5),
    "no shard": _field("manifest", "shard", to="all of it"),
    "a shard that is not there": _field("manifest", "shard", to="4/4"),
    "a shard twice": _field("manifest", "shard", to="1,1/4"),
    "another schema": _field("manifest", "schema", to=1),
    "a negative cursor": _field("cursor", "window", to=-1),
    "a cursor with more": _field("cursor", "where", to=1),
    "finished 1": _field("finished", to=1),
    "no examples": _field("examples", to=None),
    "an example of no head": _field("examples", 0, "head", to=99),
    "an example at position 0": _field("examples", 0, "position", to=0),
    "an example without a template": _field("examples", 0, "templates", to="none"),
    "a negative weight": _field("examples", 0, "templates", 0, "exact", to=-0.5),
    **{
        f"an example without its {name}": _field("examples", 0, name, to=KeyError)
        for name in ("pattern", "context_token", "passage")
    },
    "an example with a key": _field("examples", 0, "key", to=1),
    "two examples of one pattern": _twice,
    "a passage with a weight too few": _field("examples", 0, "passage", "exact", to="AAA="),
    "a passage in another writing": _field("examples", 0, "passage", "exact", to="?"),
    "no matrices": _field("matrices", to=KeyError),
    "a matrix of no head": _field("matrices", 0, "head", to=99),
    "a matrix with a key too few": _field("matrices", 0, "key_positions", to=[1]),
    "a matrix without a query": _field("matrices", 0, "query_positions", to=[]),
    "a matrix with other words": _field("matrices", 0, "keys", to=["one"]),
    "a digest of nothing": _field("waiting_queries", to="md5"),
    "more": _field("more", to=1),
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_no_audit_can_have_saved_is_refused_though_it_is_sealed(
    saved_once: Path, tmp_path: Path, change: Callable[[Saved], None]
) -> None:
    saved = read_tensors(saved_once / STATE_FILE, STATE_FORM)
    change(saved)
    write_tensors(tmp_path / STATE_FILE, STATE_FORM, *saved)
    refuses(tmp_path / STATE_FILE, lambda: AuditState.read(tmp_path))


def test_a_swap_is_no_audit(folder: Path) -> None:
    from fenchel.swap.state import STATE_FORM as SWAP_FORM

    write_tensors(folder / STATE_FILE, SWAP_FORM, *read_tensors(folder / STATE_FILE, STATE_FORM))
    message = refuses(folder / STATE_FILE, lambda: AuditReport.load(folder))
    assert "holds a saved swap, not a saved audit" in message


@pytest.fixture
def interrupted(tmp_path: Path) -> tuple[Path, Path]:
    """An interrupted audit that keeps queries, and the hidden file of those that wait."""
    folder = tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt):
        small_audit(directory=folder, keep_queries=True, observer=Interrupting(2, KeyboardInterrupt()))
    (waiting,) = folder.glob(".queries-waiting-*")
    return folder, waiting


def test_queries_that_wait_are_checked_too(interrupted: tuple[Path, Path]) -> None:
    folder, waiting = interrupted
    content = waiting.read_bytes()
    for damaged in damaged_contents(content, 6):
        waiting.write_bytes(damaged)
        refuses(waiting, lambda: small_audit(directory=folder, keep_queries=True, resume=True))
    waiting.write_bytes(content)
    small_audit(directory=folder, keep_queries=True, resume=True)


def test_queries_that_wait_are_missed(interrupted: tuple[Path, Path]) -> None:
    folder, waiting = interrupted
    waiting.unlink()
    with pytest.raises(
        InputError, match=r"queries-waiting-.* cannot be read: No such file or directory; the saved"
    ):
        small_audit(directory=folder, keep_queries=True, resume=True)
