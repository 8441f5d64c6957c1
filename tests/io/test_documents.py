"""Texts are read as they are, one at a time, and a source that cannot be read says where and why."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars
import pytest

from fenchel.errors import InputError, MissingExtraError
from fenchel.io.documents import Documents, open_documents


def texts(documents: Documents) -> list[tuple[int, int, str]]:
    return [(document.index, document.number, document.text) for document in documents]


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of text, bytes or, of a dictionary, columns in Parquet."""

    def write(name: str, content: Any) -> Path:
        content = table("parquet", content) if isinstance(content, dict) else content
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / name

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


def table(form: str, rows: Any) -> bytes:
    """The content of a table with these rows or columns, in a file of this ending."""
    out, method = io.BytesIO(), {"tsv": "csv", "jsonl": "ndjson"}.get(form, form)
    options = {"tsv": {"separator": "\t", "quote_style": "never"}, "parquet": {"row_group_size": 5000}}
    getattr(polars.DataFrame(rows), f"write_{method}")(out, **options.get(form, {}))
    return out.getvalue()


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "": bytes}


@pytest.mark.parametrize("form", ["csv", "tsv", "json", "jsonl", "csv.gz", "tsv.bz2", "ndjson.xz", "parquet"])
def test_every_form_gives_the_same_texts_targets_and_labels(file, form):
    kept = ["NA", "012", "null", "né", "  a, b ", *["2020-01-01"] * 700, 'a "b"', "w " * 100_000]
    rows = [{"text": text, "body": f"body {n}", "kind": n % 3, "is": n > 2} for n, text in enumerate(kept)]
    ending, _, packed = form.partition(".")
    path = file(f"some.{form}", PACKED[packed](table(ending, rows)))
    documents = open_documents(path, target_column="body")
    assert texts(documents) == [(n, n + 1, text) for n, text in enumerate(kept)]
    assert [document.target for document in documents] == [row["body"] for row in rows], "read again"
    for column in ("kind", "is"):
        labels = [one.target for one in open_documents(path, text_column="body", label_column=column)]
        assert labels == [str(row[column]).lower() for row in rows]


@pytest.mark.parametrize("packed", PACKED)
def test_plain_text_compressed_or_not_by_line_and_as_a_whole(file, packed):
    content = "one\n\ntwo\nthree"
    path = file(f"a b.txt.{packed}" if packed else "[*]?", PACKED[packed](content.encode()))
    assert texts(open_documents(path)) == [(0, 1, "one"), (1, 3, "two"), (2, 4, "three")]
    assert texts(open_documents(path, whole_file=True)) == [(0, 1, content)]
    assert len(texts(open_documents("demo"))) > 5
    assert [document.fraction_at(1.0) for document in open_documents("demo", whole_file=True)] == [1.0]


def test_fraction_reaches_one_and_never_falls(file):
    rows = [{"text": "a"}, {"text": "b"}]
    files = [file(f"some.{form}", table(form, rows)) for form in ("jsonl", "json", "csv", "parquet")]
    for source in (file("some.txt", "a\nbb\n\nccc\n"), file("one", "a"), ["a", "b", "c"], *files):
        fractions = [document.fraction_at(1.0) for document in open_documents(source)]
        assert fractions == sorted(fractions)  # pyright: ignore[reportArgumentType]
        assert fractions[-1] == 1.0
    assert [document.fraction_at(0.5) for document in open_documents(["a", "b"])] == [0.25, 0.75]
    for source in (iter("a"), file("a.gz", gzip.compress(b"a"))):
        assert [document.fraction_at(0.5) for document in open_documents(source)] == [None]


UNREAD = r"some\.\S* cannot be read: "
WHOLE: dict[str, Any] = {"whole_file": True}
UNREADABLE: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("some.txt", b"ok\n\xff\xfeh\x00", {}, r"line 2 of .*some\.txt is not UTF-8, as byte 0xff shows .*UTF-16: iconv"),
    ("some.txt", b"", {}, r"some\.txt is empty"),
    ("some.txt", b"\n  \n\t\n", {}, r"no text in .*some\.txt: every document is blank"),
    ("some.csv", "text\nb, c\na\n", {}, r"row 1 of .*some\.csv, in line 2, has 2 cells, but .* names 1 column\. Fix"),
    ("some.tsv", "b\ttext\na\n", {}, r"row 1 of .*some\.tsv, in line 2, has 1 cell, but .* names 2 columns\. Fix"),
    ("some.csv", 'text,b\na,1\n"b,2\nc,3\n', {}, r"some\.csv cannot be read after row 1, .* line 4: .* the quotes"),
    ("some.csv", "text,text\na,b\n", {}, r"some\.csv has 2 columns 'text'\. Rename"),
    ("some.csv", "b,c\na,b", {}, r"some\.csv has no column 'text'; it has 'b', 'c'"),
    ("some.txt.gz", gzip.compress(b"hello world")[:-6], WHOLE, UNREAD),
    ("some.json", '[{"text": "a"}, {', {}, r"some\.json cannot be read as JSON \(.*: column 18 "),
    ("some.json", '[{"text": "a"}, {"text": 7}]', {}, r"row 2 of .*: column 'text' is of type int, not text"),
    ("some.jsonl", '{"text": "a"}\n{"text": \n', {}, r"line 2 of .* cannot be read as JSON \(.*; expected an object"),
    ("some.jsonl", '["a", "b"]\n', {}, r"line 1 of .* is a JSON list; expected an object"),
    ("some.jsonl", '{"b": "a", "c": "b"}\n', {}, r"line 1 of .* has no column 'text'; it has 'b', 'c'"),
    ("some.jsonl", '{"text": "a"}\n{"text": null}\n', {}, r"line 2 of .*: column 'text' is null, not text"),
    ("some.jsonl", '{"text": "w1 \\ud800 w2"}', {}, r"line 1 of .*: character 4 .* an unpaired surrogate"),
    *(("some.txt", "a\nb\0", whole, r" of .* not valid text: character [24] is NUL") for whole in (WHOLE, {})),
    ("some.csv", "text,b\na\0,b\n", {}, r"row 1 of .* character 2 is NUL\. Fix or drop"),
    ("some.jsonl", '{"text": "a"}\n{"text": "a", "b": {"c": 1, "c": 2}}', {}, r"line 2 of .* has the key 'c' twice"),
    ("some.json", '[{"text": "a", "text": "b"}]', {}, r"some\.json cannot .* has the key 'text' twice"),
    ("some.jsonl", '{"n": ' + "9" * 5000 + "}", {}, r"line 1 of .* cannot be read as JSON \(.*4300 digits"),
    ("some.jsonl", '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", {}, r"line 1 of .* read as JSON .*recursion"),
    ("some.jsonl", json.dumps({f"k{k}": 1 for k in range(20_000)}), {}, r"no column 'text'; .* and 19990 more"),
    ("some.parquet", {"body": ["a"]}, {}, r"some\.parquet has no column 'text'; it has 'body'"),
    ("some.parquet", {"text": ["a"], "label": [None]}, {"label_column": "label"}, "'label' is null, not text or"),
    ("some.parquet", b"PAR1" + b"\0" * 50, {}, UNREAD),
    ("some.txt", "a", {"text_column": "text"}, "plain text file .* has no columns"),
    ("some.jsonl", "a", WHOLE, "table .* cannot be read as a whole file"),
    ("ag_news", None, WHOLE, "dataset 'ag_news' cannot be read as a whole file"),
    (["a"], None, {"text_column": "body"}, "Python strings has no columns"),
    (["a", 7], None, {}, "text 2 is of type int, not a string"),
    (polars.DataFrame({"text": ["a"]}), None, {}, "^texts is .*expected a path, .* strings, such as a column"),
    *((name, None, {}, f"{name} does not exist") for name in ("nowhere.txt", "text")),
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


def test_parquet_with_damaged_pages(file):
    path = file("some.parquet", {"text": [f"w{k} w{k + 1}" for k in range(40)]})
    whole, refusals = path.read_bytes(), 0
    for place in (8, 45, 82, 119, 200, 300):
        changed = bytes([whole[place] ^ 0xFF, whole[place + 1] ^ 0x55])
        path.write_bytes(whole[:place] + changed + whole[place + 2 :])
        try:
            list(open_documents(path))  # a letter that became another one is a text like any other
        except InputError as error:
            refusals += "some.parquet cannot be read" in str(error)
    assert refusals >= 4


def test_a_table_that_holds_a_long_text_many_times_is_not_unfolded(file):
    texts = polars.Series("text", ["w1 " * 1_000_000]).cast(polars.Categorical).new_from_index(0, 5000)
    documents = iter(open_documents(file("some.parquet", {"text": texts})))  # 15 GB, were it unfolded
    assert len(next(documents).text) == len(next(documents).text) == 3_000_000


@pytest.fixture
def hub(monkeypatch):
    """A dataset library that knows one dataset, with two splits, and records how it was asked."""
    import datasets
    import huggingface_hub
    from datasets import config as settings
    from datasets.exceptions import DatasetNotFoundError

    asked: list[tuple[object, ...]] = []

    def rows() -> Iterator[dict[str, str]]:
        yield from ({"text": f"row {number}", "body": f"body {number}"} for number in range(3))

    def broken() -> Iterator[dict[str, str]]:
        yield {"text": "row 0"}
        raise ConnectionError("the cable\nwas cut")

    def find(hub: object, path: str, timeout: float) -> None:
        if path.startswith("nowhere/"):
            raise TimeoutError("no route")

    def load(path: str, config: str | None = None, *, streaming: bool = False):
        asked.append((path, config, streaming))
        # Only what is cached is looked for where the hub does not answer: nothing is tried again.
        assert path.startswith("nowhere/") == settings.HF_HUB_OFFLINE
        if path not in ("somebody/known", "somebody/unreliable", "nowhere/cached"):
            raise DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub\nmore")
        stream = datasets.IterableDataset.from_generator(broken if path == "somebody/unreliable" else rows)
        return datasets.IterableDatasetDict({"train": stream, "test": stream.take(1)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(settings, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", find)
    return asked


def test_dataset_streams(hub, monkeypatch):
    assert texts(open_documents("somebody/known")) == [(n, n + 1, f"row {n}") for n in range(3)]
    assert texts(open_documents("somebody/known:small@test", text_column="body")) == [(0, 1, "body 0")]
    assert hub == [("somebody/known", None, True), ("somebody/known", "small", True)]
    assert texts(open_documents("nowhere/cached")) == texts(open_documents("somebody/known"))
    assert open_documents("somebody/known").text_sha256 is None
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(
        "huggingface_hub.HfApi.dataset_info", lambda *_, **__: pytest.fail("the hub was asked")
    )
    assert len(texts(open_documents("nowhere/cached"))) == 3


def test_bad_dataset(hub):
    options: Any
    for name, options, message in (
        ("nobody/nothing", {}, r"'nobody/nothing' is neither a local file nor a dataset .* doesn't exist on"),
        ("nowhere/known", {}, r"'nowhere/known' is .* opened: the hub does not answer \(no route\)\. Check"),
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
