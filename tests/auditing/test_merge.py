"""Shards merge into the audit of the whole, the same bytes in any order."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.merge import merge
from fenchel.errors import InputError
from tests.auditing.small_audits import (
    Interrupting,
    assert_close,
    assert_same_audit,
    files_of,
    numbers_of,
    small_audit,
    some_texts,
)

COUNT = 3
# With one window a batch, the model is called with the same tensors whoever has the window.
SAMPLED: dict[str, Any] = {"batch_size": 1, "queries": 4, "baseline": "twin"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three finished shards of a sample and its twin; not to be changed."""
    folder = tmp_path_factory.mktemp("shards")
    for index in range(COUNT):
        small_audit(directory=folder, shard=(index, COUNT), **SAMPLED)
    return folder


def folders_of(shards: Path) -> list[Path]:
    return sorted(shards.glob("shard-*"))


def test_merged_shards_are_the_audit_of_the_whole(shards: Path, tmp_path: Path) -> None:
    whole, merged = small_audit(**SAMPLED), merge(shards, tmp_path)
    assert_close(list(numbers_of(merged)), list(numbers_of(whole)))
    assert_close(merged.twin_heads, whole.twin_heads)
    assert_close(merged.summary, whole.summary)
    differing = {key for key in whole.manifest if whole.manifest[key] != merged.manifest[key]}
    assert differing - {"seconds", "estimated_seconds"} == {"merged_from"}
    assert merged.manifest["merged_from"] == COUNT
    assert merged.manifest["shard"] == "0/1"


def test_merging_in_any_order_and_in_steps_gives_the_same_bytes(shards: Path, tmp_path: Path) -> None:
    first, second, third = folders_of(shards)
    merge(shards, tmp_path / "at once")
    expected = files_of(tmp_path / "at once")
    merge([third, first, second], tmp_path / "in any order")
    assert files_of(tmp_path / "in any order") == expected
    merge([third, first], tmp_path / "in steps", partial=True)
    shutil.copytree(tmp_path / "in steps", tmp_path / "two")
    merge([second, tmp_path / "two"], tmp_path / "in steps")
    assert files_of(tmp_path / "in steps") == expected


def test_missing_shards_are_named_and_none_counts_twice(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shards 0/3, 2/3 are missing\. .* --partial"):
        merge([folders_of(shards)[1]], tmp_path)
    assert list(tmp_path.iterdir()) == []
    two = merge(folders_of(shards)[::2], partial=True)
    assert two.manifest["shard"] == "0,2/3"
    copy = tmp_path / "copy"
    shutil.copytree(folders_of(shards)[1], copy)
    with pytest.raises(InputError, match=r"shard-1-of-3 and .*copy both hold shard 1/3, which would count"):
        merge([shards, copy], tmp_path / "out")
    assert not (tmp_path / "out").exists()


OTHERS: dict[str, dict[str, Any]] = {
    r"alpha: 1\.0 in the first, 2\.0 in the second": {"alpha": 2.0},
    "text sha256": {"texts": some_texts(seed=5)},
    "number of shards: 3 in the first, 4 in the second": {"shard": (3, 4)},
}


@pytest.mark.parametrize("message", OTHERS)
def test_audits_that_do_not_belong_together(shards: Path, tmp_path: Path, message: str) -> None:
    given = {**SAMPLED, "texts": some_texts(3), "directory": tmp_path, "shard": (2, COUNT), **OTHERS[message]}
    small_audit(**given)
    [other] = tmp_path.iterdir()
    with pytest.raises(InputError, match=f"are not parts of one audit; they differ in .*{message}"):
        merge([*folders_of(shards)[:2], other])


def test_an_unfinished_shard_is_refused_and_says_how_to_go_on(shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    shutil.copytree(shards, folder)
    shutil.rmtree(folder / "shard-1-of-3")
    with pytest.raises(KeyboardInterrupt):
        small_audit(directory=folder, shard=(1, 3), observer=Interrupting(1, KeyboardInterrupt()), **SAMPLED)
    message = r"shard-1-of-3 holds an audit that was interrupted after \d+ tokens\. Finish it with --resume"
    with pytest.raises(InputError, match=message):
        merge(folder)
    (folder / "shard-1-of-3" / "state.json").unlink()
    with pytest.raises(InputError, match=r"shard-1-of-3 holds no audit: state\.json is missing"):
        merge(folder)
    assert not (folder / "report.html").exists()
    small_audit(directory=folder, shard=(1, 3), resume=True, **SAMPLED)
    merge(folder)
    merge(shards, tmp_path / "expected")
    assert_same_audit(tmp_path / "expected", folder)


def test_a_shard_without_a_document_merges(tmp_path: Path) -> None:
    for index in range(2):
        small_audit(["w1 w2 w3"], directory=tmp_path, shard=(index, 2), batch_size=1)
    merged = merge(tmp_path)
    assert_close(merged.heads, small_audit(["w1 w2 w3"], batch_size=1).heads)


def test_the_place_is_neither_a_source_nor_another_audit(shards: Path, tmp_path: Path) -> None:
    shard = folders_of(shards)[0]
    with pytest.raises(InputError, match="is one of the audits to be merged and would be overwritten"):
        merge(shards, shard)
    with pytest.raises(InputError, match="nothing to merge"):
        merge([])
    small_audit(some_texts(seed=1), directory=tmp_path / "mine")
    mine = files_of(tmp_path / "mine")
    with pytest.raises(InputError, match=r"holds another audit than .*; they differ in .*text sha256"):
        merge(shards, tmp_path / "mine")
    assert files_of(tmp_path / "mine") == mine
    merge(shards, tmp_path / "mine", overwrite=True)
    merge(shards, tmp_path / "fresh")
    assert files_of(tmp_path / "mine") == files_of(tmp_path / "fresh")


def test_places_are_all_named(shards: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(shards, tmp_path / "moved")
    for folder, device in zip(folders_of(moved), ("cuda:0", "cpu", "cuda:0"), strict=True):
        state = AuditReport.read(folder)
        state.manifest["device"] = device
        state.write(folder)
    assert merge(moved).manifest["device"] == "cpu, cuda:0"
