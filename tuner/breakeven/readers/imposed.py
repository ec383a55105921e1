"""The load that a tool imposed, as the columns and flags of its point: a rate, clients, or a rate up to so many clients."""

from __future__ import annotations

from typing import Any

from breakeven.reasons import Reason

_EVEN_SHAPE = 10.0
"""Shape of gamma arrivals from which they are as even as clock ticks."""

_BUSY = 0.9
"""Share of the clients in flight from which an open loop waits for one of them."""


def gamma_arrivals(shape: float | None) -> str | None:
    """The word for arrivals whose gaps have a gamma distribution of this shape; None if it is neither of ours."""
    if shape == 1.0:
        return "poisson"
    return "constant" if shape is not None and shape >= _EVEN_SHAPE else None


def imposed(
    rate_rps: float | None, clients: float | None, inflight: float | None, arrivals: str | None
) -> tuple[dict[str, tuple[Any, ...]], list[Reason]]:
    """The columns, each with the field that it rests on (`rate`, `clients` or `arrivals`), and flags.

    Without a rate clients ask again as soon as they are answered. Arrivals are None if they were neither Poisson nor constant, or
    the tool does not say.
    """
    if rate_rps is None and clients is None:
        # With every request sent at once, the run shows the throughput ceiling and nothing else.
        return {"concurrency": (max(1.0, inflight or 1.0), "clients")}, [Reason.SATURATED_POINT]
    if rate_rps is None:
        return {"concurrency": (clients, "clients")}, []
    # If all clients are busy an open loop becomes a closed one: requests wait in the load generator.
    flags = [Reason.SATURATED_POINT] if clients is not None and (inflight or 0.0) > _BUSY * clients else []
    if arrivals is None:
        flags.append(Reason.ARRIVALS_UNKNOWN)
    return {
        "request_rate_rps": (rate_rps, "rate"),
        "load_mode": (arrivals or "poisson", "arrivals"),
    }, flags
