"""Memory of an audit of a short and of a long text, and time and memory of the page of a table of ten million rows."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.long_context import peak_mb
from benchmarks.recording import record
from fenchel.auditing import AuditReport, audit
from fenchel.auditing.report import render_html
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.table import QUERIES, schema
from fenchel.io.storage import ParquetTable

LAYERS, HEADS, WINDOW = 12, 6, 512
TOKENS = (1_000, 100_000)
ROWS = 10_000_000


def audit_once(tokens: int) -> dict[str, float]:
    """An audit of random words with the sample of queries that is the default, and its page, in this process."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 1000,
        "hidden_size": 48,
        "intermediate_size": 48,
        "max_position_embeddings": WINDOW,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    model = BertModel(BertConfig(**sizes)).eval()
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(1000)}, unk_token="w0"))  # noqa: S106
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", model_max_length=WINDOW)  # noqa: S106
    numbers = torch.randint(1, 1000, (tokens,)).split(500)
    texts = [" ".join(f"w{number}" for number in part.tolist()) for part in numbers]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        report = audit(model, tokenizer, texts, baseline="none", directory=folder)
        taken = time.perf_counter() - start
        rows = sum(head["queries"] for head in report.heads)
    return {"tokens": tokens, "rows": rows, "audit_s": taken, "peak_mb": peak_mb()}


def page_once(rows: int) -> dict[str, float]:
    """The page of an audit whose table has so many random rows, in this process."""
    each, typed = rows // (LAYERS * HEADS), schema()
    draw = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        table = ParquetTable(Path(folder) / QUERIES)
        for layer in range(1, LAYERS + 1):
            place = polars.int_range(HEADS * each)
            fixed: dict[str, Any] = {
                "kind": polars.lit("encoder_self"),
                "layer": layer,
                "head": place // each + 1,
                "document": place % each // 100 + 1,
                "position": place % each + 1,
                "token": place % 1000,
                "type": polars.lit("word"),
                "class": polars.lit("rest"),
                "converged": True,
                "newton_steps": 3,
            }
            frame = polars.select(**fixed)
            for name, kind in typed.items():
                if kind.is_float():
                    # A byte each, so that reading them does not cost what random digits would.
                    values = torch.randint(1, 256, (len(frame),), generator=draw) / 256
                    frame = frame.with_columns(polars.Series(name, values.numpy()))
                elif name not in frame.columns:
                    frame = frame.with_columns(polars.lit(1).alias(name))
            table.add([frame.select(polars.col(name).cast(kind) for name, kind in typed.items())])
            table.write()
            del frame
        before, start, used = peak_mb(), time.perf_counter(), time.process_time()
        manifest = {"model": "random", "tol": 2e-4, "queries": 16}
        page = render_html(AuditReport(manifest, AuditStatistics(table)))
        taken = {"page_s": time.perf_counter() - start, "page_cpu_s": time.process_time() - used}
    result = {"rows": each * LAYERS * HEADS, **taken, "page_bytes": len(page)}
    return result | {"peak_mb": peak_mb(), "peak_before_mb": before}


def in_fresh_process(what: str, size: int) -> dict[str, float]:
    """A fresh process, because a peak is never forgotten."""
    command = [sys.executable, "-m", "benchmarks.audit_table", "--one", what, str(size)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "SIZE"))
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    if options.one:
        what, size = options.one
        print(json.dumps({"audit": audit_once, "page": page_once}[what](int(size))))
        return
    audits = [in_fresh_process("audit", tokens) for tokens in TOKENS]
    page = in_fresh_process("page", options.rows)
    targets = {"apart_mb": 200, "page_s": 20, "page_mb": 2048}
    record("audit_table", {"audits": audits, "page": page, "targets": targets})


if __name__ == "__main__":
    main()
