"""The commands that need no torch."""

from .common import OutputFile, SecondsLimit, print_json, say, stop
from .signals import EndingSignals

__all__ = [
    "EndingSignals",
    "OutputFile",
    "SecondsLimit",
    "print_json",
    "say",
    "stop",
]
