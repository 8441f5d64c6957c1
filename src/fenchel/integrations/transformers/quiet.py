"""Keep transformers and huggingface_hub from writing to the terminal for a while; errors still raise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fenchel.integrations.transformers.requirement import require_transformers

__all__ = ["quiet"]

_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
"""Without it, transformers asks a service on the hub to convert pickled weights that it finds."""


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines below errors, no progress bars, no requests to convert weights, until the block ends."""
    transformers = require_transformers()
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    logging = transformers.utils.logging
    verbosity, hub_verbosity = logging.get_verbosity(), hub_logging.get_verbosity()
    bars, hub_bars = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    conversion = os.environ.get(_CONVERSION)
    try:
        logging.set_verbosity_error()
        hub_logging.set_verbosity_error()
        logging.disable_progress_bar()
        if hub_bars:
            disable_progress_bars()
        os.environ[_CONVERSION] = "1"
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()
        if conversion is None:
            del os.environ[_CONVERSION]
        else:
            os.environ[_CONVERSION] = conversion
