"""One replica under an open or a closed loop of requests, on the event clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

from breakeven.arm import Arm
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet import Arms


def open_loop(arms: Arms, arm: Arm, requests: Sequence[Request]) -> Engine:
    """Run requests through one replica at their arrivals, in order, to the end."""
    engine, texts = Engine(arms.config(arm)), arms.texts(arm)
    for request in requests:
        if texts is not None:
            request.text = texts.draw(request.number, request.output_tokens, request.prompt_tokens)
        engine.advance(request.arrival_s)
        engine.submit(request)
    engine.advance(math.inf)
    return engine


def closed_loop(arms: Arms, arm: Arm, requests: Sequence[Request], clients: int) -> Engine:
    """Run requests through one replica, `clients` at a time: each client sends its next one when it has its answer.

    The arrivals given are replaced. Like a real short run it ramps up and drains.
    """
    engine, texts = Engine(arms.config(arm)), arms.texts(arm)
    coming = iter(requests)

    def send(count: int) -> None:
        for _, request in zip(range(count), coming, strict=False):
            request.arrival_s = engine.clock_s
            if texts is not None:
                request.text = texts.draw(request.number, request.output_tokens, request.prompt_tokens)
            engine.submit(request)

    send(clients)
    while engine.outstanding:
        send(len(engine.advance(engine.quiet_until_s())))
    return engine
