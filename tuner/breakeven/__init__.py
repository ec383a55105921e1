"""Whether, how and until which load speculative decoding pays.

>>> import breakeven
>>> profile = breakeven.fit("examples/points.csv")
>>> print(profile.plan(rps=4))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from breakeven.front_door import FittedProfile as Profile
    from breakeven.front_door import fit

__version__ = "0.1.0"
__all__ = ["Profile", "fit"]


def __getattr__(name: str) -> Any:
    """The front door, imported on use: a command that only shows its help needs no numbers."""
    if name in __all__:
        import breakeven.front_door as door  # noqa: PLC0415

        return door.fit if name == "fit" else door.FittedProfile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
