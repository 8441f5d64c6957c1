"""What arguments may be: rules, and the one table in which every argument of Python and command line has its rule."""

from __future__ import annotations

from fenchel.arguments.device import Device
from fenchel.arguments.dtype import Dtype
from fenchel.arguments.name import Flag, OneOf, PathName, SomeOf, Text
from fenchel.arguments.number import Number, Numbers, NumbersFromOne, Whole
from fenchel.arguments.part import Having
from fenchel.arguments.rule import AbstractRule, Maybe, Unfit, shown
from fenchel.arguments.table import ARGUMENTS, ESTIMATORS, MOST_LAYERS, checked

__all__ = [
    "ARGUMENTS",
    "ESTIMATORS",
    "MOST_LAYERS",
    "AbstractRule",
    "Device",
    "Dtype",
    "Flag",
    "Having",
    "Maybe",
    "Number",
    "Numbers",
    "NumbersFromOne",
    "OneOf",
    "PathName",
    "SomeOf",
    "Text",
    "Unfit",
    "Whole",
    "checked",
    "shown",
]
