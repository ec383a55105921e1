"""How the answers of arms compare with answers without speculation: of a run, of a profile, and of a service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import ATOMIC, ArmName, Number, Sentence, StatusModel, Word
from breakeven_operator.resources.figures import FigureGauge, row


class ArmAnswers(StatusModel):
    """How the answers of one arm compare with answers without speculation; holds nothing of a request or an answer."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    word: Annotated[
        Word,
        Field(
            description="AnswersAgree, AnswersDiffer, AnswersBroken or AnswersUndecided; see docs/reasons.md."
        ),
    ]
    message: Sentence | None = row("The same as a sentence.")
    answers: int = row("Judged answers.", default=0, ge=0)
    tokens: int = row("Judged tokens.", default=0, ge=0)
    near_ties: int = row(
        "Tokens that are not the judge's first choice by no more than rounding explains.", default=0, ge=0
    )
    differing: int = row("Answers with a token that no speculation would not choose.", default=0, ge=0)
    flawed: int = row(
        "Answers that are empty, invalid or looping where no speculation's are not.", default=0, ge=0
    )
    places: tuple[Annotated[str, Field(max_length=128)], ...] = row(
        "First faults: name of the request, position in the answer.", default=(), extra=ATOMIC, max_length=8
    )
    equal: int = row("Answers with the very tokens of the answers without speculation.", default=0, ge=0)
    compared: int = row("Answers that could be compared so.", default=0, ge=0)
    first_difference: int | None = row("Smallest position at which two of them part.", ge=0)
    widest_gap_nats: Number | None = row(
        "Widest gap between the judge's first choice and a token of the arm, as logarithms of probability."
    )
    p_value: Number | None = row("Chance of so much difference without a fault.")
    share_upper_percent: Number | None = row(
        "Upper bound of the share of requests that are answered differently."
    )


class AnswersInForce(StatusModel):
    """The word of the profile in force about the answers of one arm."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    word: Annotated[
        Word,
        Field(
            description="AnswersAgree, AnswersDiffer, AnswersBroken or AnswersUndecided; see docs/reasons.md."
        ),
        FigureGauge(
            "breakeven_arm_answers",
            "1 for the word about an arm's answers beside answers without speculation: AnswersAgree, AnswersDiffer, AnswersBroken "
            "or AnswersUndecided. Absent where they were not compared.",
            {"arm": "arm", "word": "word"},
            info=True,
        ),
    ]
