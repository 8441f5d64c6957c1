"""Shards deal out every document once."""

from __future__ import annotations

import math

import pytest

from fenchel.errors import InputError
from fenchel.io.shard import Shard


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_document_goes_to_one_shard(count):
    taken = [[document for document in range(20) if Shard(i, count).takes(document)] for i in range(count)]
    assert sorted(document for part in taken for document in part) == list(range(20))
    assert max(map(len, taken)) - min(map(len, taken)) <= 1


@pytest.mark.parametrize("total", [1, 10, 11])
def test_shares_add_up(total):
    assert sum(Shard(i, 4).share(total) for i in range(4)) == total
    assert Shard(0, 4).share(None) == math.inf


def test_parse_and_print():
    assert Shard.parse("2/5") == Shard(2, 5)
    assert str(Shard(2, 5)) == "2/5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", r"'3' is not of the form i/n"),
        ("a/b", r"'a/b' is not of the form i/n"),
        ("", r"'' is not of the form i/n"),
        ("4/4", r"shard 4/4 does not exist: shards go from 0/4 to 3/4"),
        ("-1/4", r"shard -1/4 does not exist"),
        ("0/0", r"there must be at least 1"),
    ],
)
def test_what_is_no_shard(text, message):
    with pytest.raises(InputError, match=message):
        Shard.parse(text)


def test_shard_from_the_environment(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Shard.from_environment() == Shard(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    assert Shard.from_environment() == Shard(2, 3)
    monkeypatch.delenv("RANK")
    with pytest.raises(InputError, match=r"WORLD_SIZE is 3 but RANK is not set"):
        Shard.from_environment()
