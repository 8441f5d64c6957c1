"""A run: one process writes to its folder, nothing there is replaced unasked, shards deal out every document once."""

import math
from pathlib import Path

import pytest

from fenchel.errors import InputError, OutputError
from fenchel.io.runs import LOCK_FILE, ProgressClock, Shard, claimed, differences


def test_a_claimed_folder_is_refused_to_others_and_left_without_a_trace(tmp_path: Path) -> None:
    """Of one whose process was killed: tests/auditing/test_checkpoint.py."""
    folder = tmp_path / "new" / "run"
    with claimed(folder):
        assert (folder / LOCK_FILE).exists()
        for _ in range(2):
            with pytest.raises(InputError, match="is in use: another process"), claimed(folder):
                pytest.fail("it was claimed twice")
        with claimed(tmp_path):
            pass
        assert (folder / LOCK_FILE).exists()
    assert list(folder.iterdir()) == []
    with pytest.raises(RuntimeError, match="stop"), claimed(folder):
        raise RuntimeError("stop")
    with claimed(folder), claimed(None):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"), claimed(tmp_path / "file" / "run"):
        pass


def test_each_difference_of_manifests_is_a_phrase_in_their_order() -> None:
    there = {"model": "bert", "batch_size": 8, "alpha": 1.0, "tokens": 5}
    asked = {"device": "cpu", **there, "alpha": 2.0, "batch_size": 4}
    assert differences(there, asked) == [
        "batch size: 8 there, 4 asked for",
        "alpha: 1.0 there, 2.0 asked for",
        "device: the default there, 'cpu' asked for",
    ]
    assert differences(there, asked, ignored={"alpha", "device", "batch_size"}) == []
    assert differences(there, dict(there)) == []
    assert differences({"seed": 0}, {"seed": 1}, labels=("here", "in b")) == ["seed: 0 here, 1 in b"]
    # The convention follows from others, and is named where none of them says why it differs.
    for name in ("space", "closeness", "convention"):
        there, asked = ({"convention": value, name: value} for value in "ab")
        assert differences(there, asked) == [f"{name}: 'a' there, 'b' asked for"]


def test_shards_share_documents_and_limits(monkeypatch):
    for count in (1, 2, 3, 7):
        taken = [[number for number in range(20) if Shard(i, count).takes(number)] for i in range(count)]
        assert sorted(number for part in taken for number in part) == list(range(20))
        assert max(map(len, taken)) - min(map(len, taken)) <= 1
    for total in (1, 10, 11):
        assert sum(Shard(i, 4).share(total) for i in range(4)) == total
    assert Shard(0, 4).share(None) == math.inf
    assert Shard.of("2/5") == Shard(2, 5)
    assert str(Shard(2, 5)) == "2/5"
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match=r"WORLD_SIZE is 3 but RANK is not set"):
        Shard.from_environment()
    nowhere = "does not exist; expected i/n with i from 0 to n - 1"
    for text, message in (
        *((text, rf"shard is '{text}'; expected i/n or \(i, n\)") for text in ("3", "a/b", "")),
        *((text, f"shard {text} {nowhere}") for text in ("4/4", "0/0")),
    ):
        with pytest.raises(InputError, match=message):
            Shard.of(text)


def test_speed_and_time_left_are_those_of_this_run_and_what_cannot_be_told_is_not() -> None:
    seconds = [100.0]
    progress, resumed, unknown = (ProgressClock(begun, now=lambda: seconds[0]) for begun in (0, 1000, 0))
    assert unknown.progress(1, 5, None).tokens_per_second == 0.0
    seconds[0] += 4.0
    found = progress.progress(documents=3, tokens=200, fraction=0.25)
    assert (found.documents, found.tokens, found.seconds) == (3, 200, 4.0)
    assert (found.tokens_per_second, found.seconds_left) == (pytest.approx(50.0), pytest.approx(12.0))
    first = resumed.progress(50, 1100, 0.5)
    assert (first.tokens_per_second, first.seconds_left) == (pytest.approx(25.0), None)
    assert unknown.progress(1, 5, None).seconds_left is None
    seconds[0] += 4.0
    assert progress.progress(6, 400, 0.75).seconds_left == pytest.approx(8.0 / 3.0)
    assert progress.progress(6, 400, 1.0).seconds_left == pytest.approx(0.0)
    assert resumed.progress(60, 1200, 0.75).seconds_left == pytest.approx(4.0)
    skipped = ProgressClock(now=lambda: seconds[0], skip_first=True)
    seconds[0] += 100.0
    assert skipped.progress(1, 5, 0.25).seconds_left is None
    seconds[0] += 1.0
    assert skipped.progress(1, 5, 0.5).seconds_left == pytest.approx(2.0)
