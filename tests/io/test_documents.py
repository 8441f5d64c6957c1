"""Texts are read as they are, one at a time, and a source that cannot be read says where and why."""

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fenchel.errors import InputError, MissingExtraError
from fenchel.io import documents as reading
from fenchel.io.documents import Documents, open_documents


def texts(documents: Documents) -> list[tuple[int, int, str]]:
    return [(document.index, document.number, document.text) for document in documents]


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of text, bytes or, of a dictionary, columns."""

    def write(name: str, content: Any, row_group_size: int = 100) -> Path:
        path = tmp_path / name
        if isinstance(content, dict):
            import pyarrow as pa
            from pyarrow import parquet

            parquet.write_table(pa.table(content), path, row_group_size=row_group_size)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_plain_text_is_one_document_a_line_and_keeps_line_numbers(file):
    for content, expected in (
        ("first\n\n  \nsecond é\r\nthird", [(0, 1, "first"), (1, 4, "second é"), (2, 5, "third")]),
        ("a\u2028b\x0bc\x85d\n", [(0, 1, "a\u2028b\x0bc\x85d")]),
        (b"\xef\xbb\xbfhello\n", [(0, 1, "hello")]),
    ):
        assert texts(open_documents(file("some.txt", content))) == expected


def test_hash_is_that_of_the_file_and_of_strings_with_where_each_ends(file):
    content = b"one\ntwo\n"
    assert open_documents(file("some.txt", content)).text_sha256 == hashlib.sha256(content).hexdigest()
    assert open_documents(["ab", "c"]).text_sha256 != open_documents(["a", "bc"]).text_sha256
    assert open_documents(["ab", "c"]).text_sha256 == open_documents(("ab", "c")).text_sha256
    assert open_documents(iter(["ab"])).text_sha256 is None


@pytest.mark.parametrize("form", ["txt", "jsonl", "txt.gz", "jsonl.gz", "parquet"])
def test_every_form_gives_its_texts_with_their_places_and_targets(file, form):
    rows = [{"text": f"text {number}", "body": f"body {number}"} for number in range(700)]
    if form == "parquet":
        content: Any = {name: [row[name] for row in rows] for name in ("text", "body")}
    else:
        lines = [row["text"] if form.startswith("txt") else json.dumps(row) for row in rows]
        content = "\n".join(["", *lines]).encode()
    path = file(f"some.{form}", gzip.compress(content) if form.endswith("gz") else content, row_group_size=90)
    first = 1 if form == "parquet" else 2
    expected = [(n, n + first, f"text {n}") for n in range(700)]
    documents = open_documents(path)
    assert texts(documents) == expected
    assert texts(documents) == expected, "they can be read again"
    if not form.startswith("txt"):
        document = next(iter(open_documents(path, text_column="body", target_column="text")))
        assert (document.text, document.target) == ("body 0", "text 0")
    elif form == "txt":
        assert texts(open_documents(path, whole_file=True)) == [(0, 1, path.read_text())]


def test_fraction_reaches_one_and_never_falls(file):
    sources = [
        file("some.txt", "a\nbb\n\nccc\n"),
        file("some.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 50)),
        file("some.parquet", {"text": ["a", "b"]}),
        ["a", "b", "c"],
    ]
    for source in sources:
        fractions = [document.fraction_at(1.0) for document in open_documents(source)]
        assert fractions == sorted(fractions)  # pyright: ignore[reportArgumentType]
        assert fractions[-1] == pytest.approx(1.0, abs=0.02)
    documents = list(open_documents(["a", "b"]))
    assert documents[1].fraction_at(0.5) == 0.75
    assert next(iter(open_documents(iter("a")))).fraction_at(0.5) is None


NOT_TEXT = r"is a table \(\.[ct]sv\), which cannot be read as text"
INCOMPLETE = r"some\.txt\.gz is not a complete gzip file"
WHOLE: dict[str, Any] = {"whole_file": True}
UNREADABLE: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("some.txt", b"ok\n\xff\xfeh\x00", {}, r"some\.txt is not UTF-8: line 2 has byte 0xff at offset 3.*iconv"),
    ("some.txt", b"", {}, r"some\.txt is empty"),
    ("some.txt", b"\n  \n\t\n", {}, r"no text in .*some\.txt: every document is blank"),
    *((name, b'text,label\n"hello, world",1\n', {}, NOT_TEXT) for name in ("texts.CSV", "texts.tsv", "texts.csv.gz")),
    *(
        ("some.txt.gz", content, options, INCOMPLETE)
        for content in (b"plain", gzip.compress(b"hello world")[:-6])
        for options in ({}, WHOLE)
    ),
    ("some.jsonl", '{"text": "a"}\n{"text": \n', {}, r"line 2 of .*some\.jsonl is not JSON: .* at character"),
    ("some.jsonl", '["a", "b"]\n', {}, r"line 1 of .* is a JSON list, not an object"),
    ("some.jsonl", '{"b": "a", "c": "b"}\n', {}, r"line 1 of .* has no column 'text'; it has 'b', 'c'"),
    ("some.jsonl", '{"text": "a"}\n{"text": null}\n', {}, r"line 2 of .*: column 'text' is null, not text"),
    ("some.jsonl", '{"text": 7}\n', {}, r"line 1 of .*: column 'text' is of type int, not text"),
    ("some.jsonl", '{"text": "w1 \\ud800 w2"}', {}, r"line 1 of .*: character 4 .* an unpaired surrogate"),
    ("some.jsonl", '{"n": ' + "9" * 5000 + "}", {}, r"line 1 of .* has a number with thousands of digits"),
    ("some.jsonl", '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", {}, r"line 1 of .* is nested too deeply"),
    ("some.jsonl", json.dumps({f"k{k}": 1 for k in range(20_000)}), {}, r"no column 'text'; .* and 19990 more"),
    ("some.parquet", {"body": ["a"]}, {}, r"some\.parquet has no column 'text'; it has 'body'"),
    ("some.parquet", {"text": ["a", None]}, {}, r"row 2 of .*: column 'text' is null"),
    ("some.parquet", {"text": ["a"], "label": [None]}, {"label_column": "label"}, "'label' is null, not text or"),
    ("some.parquet", b"PAR1" + b"\0" * 50, {}, "is not a complete parquet file"),
    ("some.txt", "a", {"text_column": "text"}, "plain text file .* has no columns"),
    ("some.jsonl", "a", WHOLE, "jsonl file .* cannot be read as a whole file"),
    ("ag_news", None, WHOLE, "dataset 'ag_news' cannot be read as a whole file"),
    (["a"], None, {"text_column": "body"}, "Python strings has no columns"),
    (["a", 7], None, {}, "text 2 is of type int, not a string"),
    ("nowhere.txt", None, {}, r"nowhere\.txt does not exist"),
    ("/", None, {}, "is a folder, not a file"),
    ("/dev/null", None, {}, "/dev/null is not a regular file"),
    ([], None, {}, "no text in Python strings"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "content", "options", "message"), UNREADABLE, ids=lambda value: repr(value)[:16]
)
def test_what_cannot_be_read_says_where_and_why(file, source, content, options, message):
    given = source if content is None else file(source, content)
    with pytest.raises(InputError, match=message):
        list(open_documents(given, **options))


def test_a_small_file_that_unpacks_to_a_giant_is_not_unpacked(file, monkeypatch):
    with pytest.raises(InputError, match="has more than 65,536 bytes"):
        list(reading.file_lines(file("some.jsonl.gz", gzip.compress(b"a" * (1 << 17))), 1 << 16))
    monkeypatch.setattr(reading, "_UNSUSPECTED", 1 << 14)
    with pytest.raises(InputError, match="unpacks to more than 250 times its size"):
        list(open_documents(file("some.txt.gz", gzip.compress(b"\n" * (1 << 15)))))


def test_parquet_with_damaged_pages(file):
    path = file("some.parquet", {"text": [f"w{k} w{k + 1}" for k in range(40)]})
    whole, refusals = path.read_bytes(), 0
    for place in (8, 45, 82, 119, 200, 300):
        changed = bytes([whole[place] ^ 0xFF, whole[place + 1] ^ 0x55])
        path.write_bytes(whole[:place] + changed + whole[place + 2 :])
        try:
            list(open_documents(path))  # a letter that became another one is a text like any other
        except InputError as error:
            refusals += "some.parquet is not" in str(error)
    assert refusals >= 4


def test_a_table_that_holds_a_long_text_many_times_is_not_unfolded(file):
    import pyarrow as pa

    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["w1 " * 1_000_000]))
    path = file("some.parquet", {"text": texts}, row_group_size=5000)
    documents = iter(open_documents(path))  # 15 GB, were it unfolded
    assert len(next(documents).text) == len(next(documents).text) == 3_000_000


@pytest.fixture
def hub(monkeypatch):
    """A dataset library that knows one dataset, with two splits, and records how it was asked."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    asked: list[tuple[object, ...]] = []

    def rows() -> Iterator[dict[str, str]]:
        yield from ({"text": f"row {number}", "body": f"body {number}"} for number in range(3))

    def broken() -> Iterator[dict[str, str]]:
        yield {"text": "row 0"}
        raise ConnectionError("the cable\nwas cut")

    def load(path: str, config: str | None = None, *, streaming: bool = False):
        asked.append((path, config, streaming))
        if path == "somebody/unreliable":
            return datasets.IterableDatasetDict({"train": datasets.IterableDataset.from_generator(broken)})
        if path != "somebody/known":
            raise DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub\nmore")
        stream = datasets.IterableDataset.from_generator(rows)
        return datasets.IterableDatasetDict({"train": stream, "test": stream.take(1)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


def test_dataset_streams(hub):
    assert texts(open_documents("somebody/known")) == [(n, n + 1, f"row {n}") for n in range(3)]
    assert texts(open_documents("somebody/known:small@test", text_column="body")) == [(0, 1, "body 0")]
    assert hub == [("somebody/known", None, True), ("somebody/known", "small", True)]
    assert open_documents("somebody/known").text_sha256 is None


def test_bad_dataset(hub):
    options: Any
    for name, options, message in (
        ("nobody/nothing", {}, r"'nobody/nothing' is neither a local file nor a dataset .* doesn't exist on"),
        ("nothing", {}, r"'nothing' is neither a local file nor a dataset"),
        ("somebody/known@valid", {}, r"has no split 'valid'; it has 'train', 'test'.*somebody/known@train"),
        ("somebody/known", {"text_column": "words"}, r"row 1 of .* has no column 'words'; it has 'text'"),
        ("somebody/unreliable", {}, r"reading dataset .* stopped: the cable was cut\. .*--resume"),
    ):
        with pytest.raises(InputError, match=message):
            list(open_documents(name, **options))


@pytest.mark.parametrize(("module", "extra"), [("pyarrow", "report"), ("datasets", "hf")])
def test_missing_extra_is_named(module, extra, file, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    source = "somebody/known" if module == "datasets" else file("some.parquet", "anything")
    with pytest.raises(MissingExtraError, match=rf"{module} is not installed.*\[{extra}\]"):
        list(open_documents(source))
