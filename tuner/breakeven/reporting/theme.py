"""Colours and styles of pictures, for colour-blind readers and printers, on light and on dark paper.

Colour is never the only mark of an arm: every arm also has its own line style and marker, and its name stands at the
line. The palette is by Okabe and Ito (https://jfly.uni-koeln.de/color/). Its yellow is left out because it
vanishes on white paper, and its black is replaced by the ink of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from breakeven.arm import Arm

_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
# Lightened where the original would sink into dark paper (contrast at least 4.5 to 1 against #14171c).
_ON_DARK = ("#5AB4F0", "#FF8A3D", "#3CCB9E", "#E79CC6", "#9AD4F7", "#F2B53A")
_DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = (
    "-",
    "--",
    "-.",
    (0, (1, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
)
_MARKERS = "sD^vP"


@dataclass(frozen=True, slots=True)
class Stroke:
    """Colour, dashes and marker of one arm's line."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str


@dataclass(frozen=True, slots=True)
class Theme:
    """One paper: its ink, its lines and the colours of arms on it."""

    name: Literal["light", "dark"]
    paper: str
    ink: str
    faint: str
    grid: str
    shade: str
    palette: tuple[str, ...]
    narrow: bool = False
    """Whether the picture is for a phone, on which a wide one would have letters of 5 pixels."""

    def strokes(self, arms: Sequence[Arm]) -> dict[Arm, Stroke]:
        """Strokes by arm: no speculation is ink and solid, the others take colour, dash and marker in turn.

        The same list of arms gives the same strokes, so that an arm has one style in all pictures of a page.
        """
        drawn = zip(cycle(self.palette), cycle(_DASHES), cycle(_MARKERS))
        return {arm: Stroke(*next(drawn)) if arm.k else Stroke(self.ink, "-", "o") for arm in arms}


LIGHT = Theme("light", "#ffffff", "#1b1f24", "#57606a", "#d8dee4", "#f0f3f6", _OKABE_ITO)
DARK = Theme("dark", "#14171c", "#e6e9ed", "#9aa4af", "#30363d", "#1f242b", _ON_DARK)


@contextmanager
def drawing(theme: Theme) -> Iterator[None]:
    """Set matplotlib up for one theme, without touching the user's own settings outside the block."""
    import matplotlib as mpl  # noqa: PLC0415 - 0.3 s that only pictures should cost

    with mpl.rc_context(
        {
            "figure.facecolor": theme.paper,
            "savefig.facecolor": theme.paper,
            "axes.facecolor": theme.paper,
            "axes.edgecolor": theme.faint,
            "axes.labelcolor": theme.ink,
            "axes.titlecolor": theme.ink,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": theme.grid,
            "grid.linewidth": 0.6,
            "text.color": theme.ink,
            "xtick.color": theme.faint,
            "ytick.color": theme.faint,
            "xtick.labelcolor": theme.ink,
            "ytick.labelcolor": theme.ink,
            "font.size": 10,
            "font.family": "DejaVu Sans",
            "lines.linewidth": 1.8,
            "legend.frameon": False,
            "svg.fonttype": "path",
            # The same profile gives the same file, byte for byte: reports can be compared and cached.
            "svg.hashsalt": "breakeven",
            "figure.constrained_layout.use": True,
        }
    ):
        yield
