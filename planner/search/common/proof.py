"""What a search has proven so far: seconds that no plan goes below, of the space asked for and of parts of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .effort import TOLERANCE


@dataclass
class Proof:
    """Bounds in seconds; they only rise.

    Attributes:
        asked_s: of every plan that the caller allows. bound_s: of those that the search may find, whatever their shape.
        shapes_s: of the shapes searched exactly. together_s: of those whose stages have one device each.
        widths_s: of plans of several equal groups whose groups lie in these shapes; infinite where there are none.
        hopeless: no plan of these shapes fits the memory.
        looked: asked_s is all that can be proven of every plan that the caller allows; else there was no time for more.
    """

    asked_s: float = 0.0
    bound_s: float = 0.0
    shapes_s: float = 0.0
    together_s: float = 0.0
    widths_s: float = math.inf
    hopeless: bool = False
    looked: bool = False

    def of_asked(self, seconds: float, looked: bool = True) -> None:
        """Of every plan that the caller allows; `looked`: that is all."""
        self.asked_s, self.looked = max(self.asked_s, seconds), looked

    def of_searched(self, seconds: float) -> None:
        """Of those that the search may find."""
        self.bound_s = max(self.bound_s, seconds)

    def of_widths(self, seconds: float) -> None:
        """Of plans of several equal groups: the least of all ways to form them, as it is now."""
        self.widths_s = seconds

    def of_shapes(self, nearest_s: float, together_s: float, planned: bool) -> None:
        """Of the shapes searched exactly, and of those with one device a stage; infinite: none of them is of use.

        `planned`: whether there is a plan, so that this says something of plans that are better.
        """
        if math.isfinite(together_s):
            self.together_s = max(self.together_s, together_s)
        if math.isfinite(nearest_s):
            self.shapes_s = max(self.shapes_s, nearest_s)
        else:
            self.hopeless = not planned

    @property
    def least_s(self) -> float:
        """Of plans of the shapes searched."""
        return max(self.bound_s, self.shapes_s)

    def reached_by(self, seconds: float) -> bool:
        """Whether no plan of the shapes searched is shorter than this."""
        return seconds <= self.least_s * (1 + TOLERANCE.proven)

    def widths_reached_by(self, seconds: float) -> bool:
        """Whether no plan of equal groups is shorter than this whose groups lie in the shapes searched."""
        return seconds <= self.widths_s * (1 + TOLERANCE.proven)

    def searched_reached_by(self, seconds: float) -> bool:
        """Whether no plan that the search may find is shorter than this, whatever its shape."""
        return seconds <= self.bound_s * (1 + TOLERANCE.proven)

    def together_reached_by(self, seconds: float) -> bool:
        """Whether no plan with one device a stage is shorter than this."""
        return 0 < seconds <= self.together_s * (1 + TOLERANCE.proven)

    def without_shapes(self) -> Proof:
        """What holds for a part of the space: all but what was proven of shapes."""
        return Proof(self.asked_s, self.bound_s, widths_s=self.widths_s)
