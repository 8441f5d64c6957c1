"""Files that are whole or not there, and files of state: sealed with a digest, believed only after checking."""

from fenchel.storage.document import read_document, sealed_text, write_document
from fenchel.storage.files import atomic_path, check_writable, guarded_writing, removed_if_empty, write_text
from fenchel.storage.form import Form
from fenchel.storage.marked_text import between_marks, marked_names
from fenchel.storage.strict_json import json_text, parse_json, write_json
from fenchel.storage.tensors import read_tensors, write_tensors

__all__ = [
    "Form",
    "atomic_path",
    "between_marks",
    "check_writable",
    "guarded_writing",
    "json_text",
    "marked_names",
    "parse_json",
    "read_document",
    "read_tensors",
    "removed_if_empty",
    "sealed_text",
    "write_document",
    "write_json",
    "write_tensors",
    "write_text",
]
