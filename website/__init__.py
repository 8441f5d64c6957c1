"""How mkdocs makes the documentation site: ``make docs``."""
