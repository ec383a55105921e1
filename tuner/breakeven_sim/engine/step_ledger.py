"""Gains and drafts of all running requests in every coming step.

A request's steps at a fixed k are known when it begins to decode (`drafting.plan_steps`). So the sums over the batch
can be kept per coming step. A step then costs the same at every batch size, and a run of steps between two changes of
the batch is a slice.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from breakeven_sim.engine.drafting import plain_steps, plan_steps
from breakeven_sim.engine.requests import Request

_Ints = NDArray[np.int64]
_CAPACITY = 1 << 14


class Books:
    """Sums per coming step.

    Attributes:
        scheduled: drafts per request and step that are counted whatever is verified; None if only verified drafts count.
        at: index of the next step.
        gain: tokens that all requests gain, per step; valid from `at` on.
        drafted: drafts that all requests verify, likewise.
    """

    def __init__(self, scheduled: int | None = None) -> None:
        self.scheduled = scheduled
        self.at = 0
        self.gain: _Ints = np.zeros(_CAPACITY, np.int64)
        self.drafted: _Ints = np.zeros(_CAPACITY, np.int64)
        self._endings: list[tuple[int, int, Request]] = []

    def enter(self, request: Request, k: int) -> None:
        """Plan a request's decode steps at draft length k, from the next step on."""
        if k == 0 or request.text is None:
            plan = plain_steps(request.generated, request.output_tokens)
        else:
            plan = plan_steps(request.text, request.generated, request.output_tokens, k)
        if self.scheduled is not None and request.text is not None:
            plan = replace(plan, drafts_at_all=True, scheduled=self.scheduled)
        if self.at + len(plan) >= len(self.gain):
            self._start_again(len(plan))
        request.plan, request.plan_start = plan, self.at
        self.gain[self.at : request.plan_end] += plan.advance
        if k:
            self.drafted[self.at : request.plan_end] += plan.drafted
        heappush(self._endings, (request.plan_end, request.number, request))

    def withdraw(self, request: Request) -> None:
        """Take out the coming part of a request's plan and settle the past part."""
        plan = request.plan
        if plan is None:
            raise ValueError(f"request {request.number} does not decode")
        past = self.at - request.plan_start
        self.gain[self.at : request.plan_end] -= plan.advance[past:]
        self.drafted[self.at : request.plan_end] -= plan.drafted[past:]
        self._settle(request)

    def turn(self, steps: int) -> int:
        """Let `steps` steps go by; tokens gained in them."""
        begin, self.at = self.at, self.at + steps
        gained = int(self.gain[begin]) if steps == 1 else int(self.gain[begin : self.at].sum())
        if self.at >= len(self.gain):  # prompts alone turn pages too, without booking any
            self._start_again(0)
        return gained

    def ended(self) -> list[Request]:
        """Settle and return the requests whose plans are done."""
        done: list[Request] = []
        while self._endings and self._endings[0][0] <= self.at:
            end, _, request = heappop(self._endings)
            if _is_current(request, end):
                self._settle(request)
                done.append(request)
        return done

    def steps_to_next_end(self) -> int:
        """Steps up to and with the next one that ends a request; 0 if nothing decodes."""
        while self._endings:
            end, _, request = self._endings[0]
            if _is_current(request, end):
                return end - self.at
            heappop(self._endings)
        return 0

    def _settle(self, request: Request) -> None:
        plan = request.plan
        if plan is None:
            raise ValueError(f"request {request.number} does not decode")
        done = min(self.at - request.plan_start, len(plan))
        request.steps += done
        request.generated += int(plan.advance[:done].sum())
        if plan.drafts_at_all:
            drafted = plan.drafted[:done] if plan.scheduled is None else np.full(done, plan.scheduled)
            request.drafts += int(np.count_nonzero(drafted))
            request.drafted += int(drafted.sum())
            request.accepted += int(plan.accepted[:done].sum())
        request.plan = None

    def _start_again(self, needed: int) -> None:
        """Move the coming steps to the front, into arrays long enough for `needed` steps more than are booked."""
        moved, left = self.at, max(0, len(self.gain) - self.at)
        size = max(_CAPACITY, 2 * (left + needed))
        for name in ("gain", "drafted"):
            fresh = np.zeros(size, np.int64)
            fresh[:left] = getattr(self, name)[moved:]
            setattr(self, name, fresh)
        # Keyed by number: a new plan may end at the same step as the withdrawn one, and then both entries look current.
        current = {
            number: (end, request) for end, number, request in self._endings if _is_current(request, end)
        }
        for _, request in current.values():
            request.plan_start -= moved
        self._endings = [(end - moved, number, request) for number, (end, request) in current.items()]
        heapify(self._endings)
        self.at = 0


def _is_current(request: Request, end: int) -> bool:
    """Whether an ending is still meant: a request that was withdrawn leaves its old entry behind."""
    return request.plan is not None and request.plan_end == end
