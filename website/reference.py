"""The reference of the Python interface: a page a package, in which each public name is documented once."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

from website.docstrings import as_markdown
from website.options import function_table

__all__ = ["PACKAGES", "reference_pages"]

# In the order of the navigation. A name is documented on the page of the package that defines it, where that is here.
PACKAGES = (
    "fenchel",
    "fenchel.functional",
    "fenchel.nn",
    "fenchel.nn.preference",
    "fenchel.nn.evidence",
    "fenchel.preference",
    "fenchel.closeness",
    "fenchel.auditing",
    "fenchel.comparing",
    "fenchel.swap",
    "fenchel.integrations.transformers",
    "fenchel.reproducing",
    "fenchel.catalogue",
    "fenchel.plot",
    "fenchel.errors",
)


def reference_pages() -> dict[str, str]:
    """A page for each package, by its path on the site.

    Returns:
        Markdown in which mkdocstrings puts the documentation.
    """
    modules = {name: import_module(name) for name in PACKAGES}
    at_home = {
        id(value): name
        for name, module in modules.items()
        if name != "fenchel"
        for value in _public(module).values()
    }
    return {f"api/{name}.md": _page(name, module, at_home) for name, module in modules.items()}


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}


def _page(package: str, module: ModuleType, at_home: dict[int, str]) -> str:
    lines = [f"# `{package}`", "", as_markdown(f"{inspect.getdoc(module)}".split("\n\n")[0]), ""]
    elsewhere: list[str] = []
    own: list[str] = []
    for name, value in _public(module).items():
        home = at_home.get(id(value), package)
        if inspect.ismodule(value):
            known = value.__name__ in PACKAGES
            target = f"[`{value.__name__}`]({value.__name__}.md)" if known else f"`{value.__name__}`"
            elsewhere.append(f"| {target} | {_summary(value)} |")
        elif home != package:
            elsewhere.append(f"| [`{name}`]({home}.md#{home}.{name}) | {_summary(value)} |")
        else:
            own.append(f"::: {package}.{name}\n")
            if model := getattr(value, "__options__", None):
                own.append(f"Options of `{name}`:\n\n{function_table(model)}\n")
    if elsewhere:
        lines += ["| Name | What it is |", "|---|---|", *elsewhere, ""]
    return "\n".join(lines + own)


def _summary(value: Any) -> str:
    doc = inspect.getdoc(value) or ""
    return " ".join(as_markdown(doc.split("\n\n")[0]).split()).replace("|", "\\|")
