"""Whatever happens to a file that a run wrote is said in one line that names it, or the file is made anew."""

import atexit
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, partial
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.merge import merge
from fenchel.comparing import compare
from fenchel.errors import FenchelError, InputError
from fenchel.io.storage import read_document, write_document
from fenchel.reproducing import reproduce
from fenchel.swap import SwapReport
from fenchel.swap.run import SwapState
from tests.auditing.small_audits import Interrupting, files_of, small_audit, some_texts, still_clock
from tests.cli.conftest import saved
from tests.comparing.small_comparisons import known_audit, known_values
from tests.damage import damaged_contents, refuses
from tests.io.test_storage import NOTE, VALUES
from tests.swap.small_swaps import SCORED, small_swap

Read = Callable[[Path], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Attributes:
        make: Makes the first or the second of two folders that differ; with resume or overwrite, makes it again.
        sealed: Who reads a file of a name like this; the digest of such a file is written down.
        value: What the folder says; None where it is not finished.
        anew: Files with a digest that are made anew where they are missing.
    """

    make: Callable[..., Any]
    sealed: Mapping[str, tuple[Read, ...]]
    value: Read | None = None
    anew: tuple[str, ...] = ()

    def readers(self, name: str) -> tuple[Read, ...]:
        return next((readers for like, readers in self.sealed.items() if fnmatch(name, like)), ())


def audited(folder: Path, number: int = 0, **how: Any) -> AuditReport:
    given: dict[str, Any] = {"texts": some_texts(3, seed=number), "baseline": "twin", **how}
    return small_audit(directory=folder, **given)


def stopped_audit(folder: Path, number: int = 0) -> None:
    with pytest.raises(KeyboardInterrupt):
        audited(folder, number, observer=Interrupting(2, KeyboardInterrupt()))


def shards(folder: Path, number: int = 0, **how: Any) -> None:
    for index in range(2):
        audited(folder, number, shard=(index, 2), **how)


def merged(folder: Path) -> Any:
    parts, out = sorted(folder.glob("shard-*")) or [folder], folder.parent / f"merged {folder.name}"
    return merge(parts, out, partial=True, overwrite=True).heads


def swapped(folder: Path, number: int = 0, **how: Any) -> SwapReport:
    options: dict[str, Any] = {"pairs": SCORED[number:], "estimators": ["exact"], "alphas": (0.7, 1.0), **how}
    return small_swap("bert", directory=folder, seed=number, **options)


def stopped_swap(folder: Path, number: int = 0) -> None:
    texts = some_texts(seed=number)
    with pytest.raises(KeyboardInterrupt):
        swapped(folder, number, pairs=None, texts=texts, observer=Interrupting(6, KeyboardInterrupt()))


KNOWN = cache(lambda seed: known_audit(known_values(seed)))


def compared(folder: Path, number: int = 0, **_: Any) -> Any:
    return compare(
        KNOWN(number), KNOWN(1 - number), names=[f"audit {number}", "other"], directory=folder
    ).heads


@cache
def bert() -> Path:
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return saved(folder, "bert")


def reproduced(folder: Path, number: int = 0, **how: Any) -> Any:
    options = {"model": str(bert()), "max_length": 12, "batch_size": 2, "directory": folder, **how}
    return reproduce("figure5", some_texts(2, seed=number), **options).panels[0].ours


def notes(folder: Path, number: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    write_document(folder / "note.json", NOTE, {**VALUES, "weight": 1.0 + number})


def heads(folder: Path) -> Any:
    return AuditReport.load(folder).heads


LOADERS = (AuditReport.read, SwapState.read, SwapReport.load, heads, merged)
resumed = partial(audited, resume=True)
resumed_swap = partial(swapped, resume=True)
continued_swap = partial(swapped, pairs=None, texts=some_texts(), resume=True)
of_audits = (heads, resumed, merged)
KINDS = {
    "notes": Kind(notes, {"note.json": (lambda folder: read_document(folder / "note.json", NOTE),)}),
    "audit": Kind(audited, {
        "state.json": (AuditReport.read, *of_audits, audited), "queries/*": of_audits, "twin/*": of_audits,
    }, heads),
    "stopped audit": Kind(
        stopped_audit, {"state.json": (AuditReport.read, resumed), "*/*": (resumed,)}, anew=("state.json",)
    ),
    "shards": Kind(shards, {f"*/{name}": (merged,) for name in ("state.json", "queries/*", "twin/*")}, merged),
    "swap": Kind(swapped, {
        "swap-state.json": (SwapState.read, resumed_swap, swapped),
        "measurements/*": (SwapState.read, resumed_swap),
        "swap.json": (SwapReport.load,),
    }, SwapReport.load, ("swap.json",)),
    "stopped swap": Kind(
        stopped_swap,
        {"swap-state.json": (SwapState.read, continued_swap), "measurements/*": (continued_swap,)},
        anew=("swap-state.json",),
    ),
    "comparison": Kind(compared, {"compare.json": (compared,)}, compared, ("compare.json",)),
    "reproduction": Kind(reproduced, {
        f"audit/{name}": (partial(reproduced, resume=True),) for name in ("state.json", "queries/*", "twin/*")
    }, partial(reproduced, resume=True)),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def same_times() -> Iterator[None]:
    """Runs that are made again leave the same bytes."""
    with still_clock():
        yield


@pytest.fixture(scope="module", params=KINDS)
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Kind, Path, Path]:
    """A kind of folder and two of them that differ; every test leaves them as they were."""
    kind, root = KINDS[request.param], tmp_path_factory.mktemp("folders")
    one, other = root / "one", root / "other"
    kind.make(one, 0)
    kind.make(other, 1)
    assert files_of(one).values() != files_of(other).values()
    return kind, one, other


def counterpart(name: str, other: Path) -> Path:
    """The file of another run that has the place of this one."""
    if (other / name).exists():
        return other / name
    (found,) = (other / name).parent.glob(f"*{Path(name).suffix}")
    return found


def refusal(read: Read, folder: Path, named: Path) -> None:
    """A reader says in one line what is wrong, with the file or its folder, and changes nothing."""
    before = files_of(folder)
    with pytest.raises(InputError) as caught:
        read(folder)
    assert str(named) in str(caught.value)
    assert files_of(folder) == before


def test_a_damaged_file_is_named_by_all_who_read_it(folders: tuple[Kind, Path, Path]) -> None:
    kind, folder, _ = folders
    before = files_of(folder)
    seen = set()
    for name in before:
        path, content = folder / name, (folder / name).read_bytes()
        for read in kind.readers(name):
            seen.add(name)
            # Who reads this file alone with every damage, others with some.
            few = 25 if kind.make is reproduced else 9
            count, step = (300, 1) if kind.make is notes else (30, 1 if read in LOADERS[:3] else few)
            for damaged in islice(damaged_contents(content, count), 0, None, step):
                path.write_bytes(damaged)
                refuses(path, partial(read, folder))
            path.write_bytes(content)
    assert len(seen) >= len(kind.sealed)
    assert files_of(folder) == before


def test_a_file_of_another_run_or_a_missing_one_is_no_answer(
    folders: tuple[Kind, Path, Path], tmp_path: Path
) -> None:
    kind, folder, other = folders
    for name in files_of(folder):
        for place, read in enumerate(kind.readers(name)):
            found, lost = (shutil.copytree(folder, tmp_path / name / f"{place} {how}") for how in ("a", "b"))
            shutil.copy(counterpart(name, other), found / name)
            if kind.make is notes or read == SwapReport.load:
                read(found)  # of this file alone, which says whose it is
            else:
                refusal(read, found, (found / name).parent)
            (lost / name).unlink()
            if name in kind.anew and read not in LOADERS:
                read(lost)
            else:
                refusal(read, lost, (lost / name).parent)


def test_what_is_made_of_other_files_is_not_read_and_made_anew(
    folders: tuple[Kind, Path, Path], tmp_path: Path
) -> None:
    kind, folder, other = folders
    before = files_of(folder)
    made = [name for name in before if not kind.readers(name)]
    if kind.value is None:
        assert made == []
        return
    said = kind.value(folder)
    for change in (lambda name: b"", lambda name: counterpart(name, other).read_bytes()):
        found = shutil.copytree(folder, tmp_path / "found", dirs_exist_ok=True)
        for name in made:
            (found / name).write_bytes(change(name))
        assert kind.value(found) == said
    lost = [] if kind.make is shards else [*made, *kind.anew]
    for names in filter(None, (lost[::2], lost[1::2])):
        for name in names:
            (folder / name).unlink()
        kind.make(folder, resume=True)
        assert files_of(folder) == before


@pytest.mark.parametrize(("make", "state"), [(audited, "state.json"), (swapped, "swap-state.json")])
def test_overwriting_replaces_what_is_damaged(make: Any, state: str, tmp_path: Path) -> None:
    make(tmp_path)
    before = files_of(tmp_path)
    (tmp_path / state).write_bytes((tmp_path / state).read_bytes()[:-3])
    shutil.copy(tmp_path / state, tmp_path / "copy")
    make(tmp_path, overwrite=True)
    (tmp_path / "copy").unlink()
    assert files_of(tmp_path) == before


OF_BOTH: list[dict[str, Any]] = [{"texts": [" ", ""]}, {"max_length": 1}, {"tol": -1.0}]
CANNOT_BE: list[tuple[Any, list[dict[str, Any]]]] = [
    (audited, [*OF_BOTH, {"layers": [99]}, {"heads": [99]}, {"space": "bogus"}]),
    (swapped, [*OF_BOTH, {"per_layer": True, "layers": [99]}, {"per_head": True, "heads": [99]}]),
]


@pytest.mark.parametrize(("make", "wrong"), CANNOT_BE, ids=["audit", "swap"])
def test_a_folder_is_of_one_run_at_a_time_and_what_cannot_be_deletes_nothing(
    make: Any, wrong: list[dict[str, Any]], tmp_path: Path
) -> None:
    refused, folder = [], tmp_path / "run"

    class Second(Interrupting):
        def started(self, manifest: Any) -> None:
            for how in ({}, {"resume": True}, {"overwrite": True}):
                with pytest.raises(InputError, match="is in use: another process is writing its results"):
                    make(folder, 1, **how)
                refused.append(manifest)

    make(folder, observer=Second(-1, RuntimeError()))
    assert len(refused) == 3
    make(tmp_path / "alone")
    before = files_of(folder)
    assert before == files_of(tmp_path / "alone")
    for options in wrong:
        with pytest.raises(FenchelError):
            make(folder, overwrite=True, **options)
        assert files_of(folder) == before
