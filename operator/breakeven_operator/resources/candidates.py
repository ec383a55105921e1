"""Which ways of speculating are tried: the candidates part of a service's spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.methods import (
    FORMER_METHODS,
    METHODS,
    MTP_ALIAS,
    Drafter,
    drafter_of,
    methods_with,
)
from breakeven.serving.command_line import arm_json
from breakeven_operator.resources.base import LABEL_PATTERN, LIST_SET, Model, Rule, list_map

_NEEDS_MODEL = methods_with(Drafter.REQUIRED)
_WITHOUT_MODEL = methods_with(Drafter.NONE)
_KNOWN = (*METHODS, *FORMER_METHODS)
_EXPECTED = f"{', '.join(_KNOWN)}, or a word ending in {MTP_ALIAS}"


class UnknownMethod(StrEnum):
    """What becomes of a method word that this release does not know."""

    REFUSE = "Refuse"
    ALLOW = "Allow"


class SpeculativeMethod(Model):
    """One way of speculating, tried with several draft lengths."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name != 'none'",
            "the name none is taken by the arm without speculation, which is always a candidate",
            "another name",
            lambda method: method.name != "none",
            ".name",
        ),
        Rule(
            f"self.method in {list(_KNOWN)} || self.method.endsWith('{MTP_ALIAS}') "
            "|| (has(self.unknownMethod) && self.unknownMethod == 'Allow')",
            "method is no word of vLLM's that this release knows",
            f"{_EXPECTED}; for a word of a newer engine set unknownMethod: Allow",
            lambda method: (
                drafter_of(method.method) is not None or method.unknown_method is UnknownMethod.ALLOW
            ),
            ".method",
        ),
        Rule(
            f"!(self.method in {list(_NEEDS_MODEL)}) || has(self.model)",
            f"methods {', '.join(_NEEDS_MODEL)} load a drafter and none is named",
            "the drafter in model",
            lambda method: method.method not in _NEEDS_MODEL or method.model is not None,
            ".model",
        ),
        Rule(
            f"!(self.method in {list(_WITHOUT_MODEL)}) || !has(self.model)",
            f"methods {', '.join(_WITHOUT_MODEL)} load no drafter",
            "no model",
            lambda method: method.method not in _WITHOUT_MODEL or method.model is None,
            ".model",
        ),
        Rule(
            "!has(self.options) || !(has(self.options.method) || has(self.options.model) "
            "|| has(self.options.num_speculative_tokens))",
            "options repeats method, model or num_speculative_tokens",
            "the fields method, model and draftLengths beside options",
            lambda method: not {"method", "model", "num_speculative_tokens"} & method.options.keys(),
            ".options",
        ),
        Rule(
            "!has(self.options) || !has(self.options.rejection_sample_method) "
            "|| self.options.rejection_sample_method != 'synthetic'",
            "rejection_sample_method synthetic accepts drafts by chance, so its answers are wrong",
            "a lossless rejection_sample_method, or none",
            lambda method: method.options.get("rejection_sample_method") != "synthetic",
            ".options.rejection_sample_method",
        ),
    )

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=24,
            pattern=LABEL_PATTERN,
            description="Your name for it; its arms are called <name>/<draft length>.",
        ),
    ]
    method: Annotated[
        str,
        Field(
            min_length=1,
            max_length=64,
            pattern=r"^[a-z][a-z0-9_]*$",
            description=f"vLLM's word: {_EXPECTED} (such as deepseek_mtp).",
        ),
    ]
    unknown_method: Annotated[
        UnknownMethod,
        Field(
            description="Allow: take any word in method and leave it to the engine, for methods newer than this release. A "
            "word that the engine refuses ends its arm's calibration as EngineConfigRefused."
        ),
    ] = UnknownMethod.REFUSE
    model: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=512,
            # A newline or blank inside would only confuse whoever reads the pod's command line.
            pattern=r"^[^\s]+$",
            description="Drafter: a Hugging Face repository or a path inside the container.",
        ),
    ] = None
    draft_lengths: Annotated[
        tuple[Annotated[int, Field(ge=1, le=32)], ...],
        Field(
            min_length=1,
            max_length=6,
            json_schema_extra=LIST_SET,
            description="Draft lengths (tokens per step) to measure and choose from. A short and a long one predict "
            "those between to a few percent.",
        ),
    ] = (2, 7)
    options: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict,
            max_length=32,
            description="Further keys of vLLM's --speculative-config, passed on as they are: prompt_lookup_max, "
            "draft_tensor_parallel_size, quantization, ...",
            json_schema_extra={
                "additionalProperties": None,
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    # Declared because a CEL rule sees only declared keys of an open object.
                    "method": {
                        "type": "string",
                        "maxLength": 64,
                        "description": "Not allowed here: use method beside options.",
                    },
                    "model": {
                        "type": "string",
                        "maxLength": 512,
                        "description": "Not allowed here: use model beside options.",
                    },
                    "num_speculative_tokens": {
                        "type": "integer",
                        "description": "Not allowed here: use draftLengths.",
                    },
                    "rejection_sample_method": {
                        "type": "string",
                        "maxLength": 64,
                        "description": "vLLM's acceptance rule; synthetic is refused because it changes the answers.",
                    },
                },
            },
        ),
    ]

    def arms(self) -> tuple[Arm, ...]:
        """Its arms, by draft length."""
        return tuple(Arm(self.method, k, self.name) for k in sorted(self.draft_lengths))

    def speculative_config(self, k: int) -> str:
        """The value of vLLM's --speculative-config at draft length `k`, spelled in the one way that arms have."""
        config: dict[str, Any] = {**self.options, "method": self.method, "num_speculative_tokens": k}
        if self.model is not None:
            config["model"] = self.model
        return arm_json(config)


class Candidates(Model):
    """What may run on the target beside no speculation, which is always a candidate."""

    methods: Annotated[
        tuple[SpeculativeMethod, ...],
        Field(
            min_length=1,
            max_length=6,
            json_schema_extra=list_map("name"),
            description="Methods to try. Every arm costs calibration time: one engine start plus one point per load.",
        ),
    ]

    def arms(self) -> tuple[Arm, ...]:
        """No speculation first, then every method at every draft length."""
        return (NO_SPECULATION, *(arm for method in self.methods for arm in method.arms()))

    def speculative_config(self, arm: Arm) -> str:
        """What the target's annotation holds for `arm`; `null` for no speculation.

        Raises:
            KeyError: no candidate has this arm.
        """
        if arm == NO_SPECULATION:
            return arm_json(None)
        for method in self.methods:
            if arm in method.arms():
                return method.speculative_config(arm.k)
        raise KeyError(arm.name)
