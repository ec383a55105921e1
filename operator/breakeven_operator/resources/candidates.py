"""Which ways of speculating are tried: the candidates part of a service's spec."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from breakeven.arm import ADAPTIVE, NO_SPECULATION, Arm, arm_drafting
from breakeven.errors import InputError
from breakeven.methods import (
    ADAPTIVE_KEY,
    ADAPTIVE_METHODS,
    METHODS,
    MTP_ALIAS,
    SCHEDULED_METHODS,
    Drafter,
    drafter_of,
    methods_with,
    takes_adaptive,
    takes_schedule,
)
from breakeven.serving.command_line import arm_json
from breakeven.tiers import AdaptiveDrafts, Drafts, Schedule
from breakeven_operator.resources.base import LABEL_PATTERN, LIST_SET, Model, Rule, list_map
from breakeven_operator.resources.figures import row

# Bounds of further keys of vLLM's --speculative-config, which hold any JSON. They come from vLLM's own keys: the deepest is
# draft_load_config.model_loader_extra_config, an object of objects; the longest list is a draft length per batch size; the longest
# text is a tree of draft tokens.
LEVELS: Final = 4
"""Objects and lists inside each other, the options themselves counted."""
MOST_MEMBERS: Final = 32
MOST_ITEMS: Final = 256
LONGEST_TEXT: Final = 2048
LONGEST: Final = 4096
"""Characters of all options as one line of JSON: a plan holds 8192 of an arm, its drafter and its schedule among them."""
OWN_FIELDS: Final = ("method", "model", "num_speculative_tokens")


def _schema(levels: int) -> dict[str, Any]:
    """The schema of a value below which objects and lists may stand in so many levels.

    Without a type any value passes, so each bound holds for the values that it is about. The innermost level admits empty
    objects and lists, because their bounds are zero.
    """
    below = {} if levels == 0 else {"items": _schema(levels - 1), "additionalProperties": _schema(levels - 1)}
    return {
        "nullable": True,
        "maxLength": LONGEST_TEXT,
        "maxItems": MOST_ITEMS if levels else 0,
        "maxProperties": MOST_MEMBERS if levels else 0,
        "x-kubernetes-preserve-unknown-fields": True,
        **below,
    }


def _bounded(options: dict[str, Any]) -> dict[str, Any]:
    _check(options, "", LEVELS)
    if (length := len(arm_json(options))) > LONGEST:
        raise _refused(f"has {length} characters as JSON", f"at most {LONGEST}", "")
    return options


def _check(value: object, place: str, levels: int) -> None:
    """Refuse a value beyond the bounds; it is looked at no deeper than they allow."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise _refused("is too long", f"at most {LONGEST_TEXT} characters", place)
    if not isinstance(value, Mapping | list):
        return
    if value and levels == 0:
        raise _refused("is nested too deep", f"at most {LEVELS} levels of objects and lists", place)
    if isinstance(value, list):
        if len(value) > MOST_ITEMS:
            raise _refused("has too many items", f"at most {MOST_ITEMS}", place)
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]", levels - 1)
        return
    if len(value) > MOST_MEMBERS:
        raise _refused("has too many members", f"at most {MOST_MEMBERS}", place)
    for key, member in value.items():
        _check(member, f"{place}.{key[:64]}", levels - 1)


def _refused(problem: str, wanted: str, place: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "wanted": wanted, "field": place})


Options = Annotated[
    dict[str, Any],
    AfterValidator(_bounded),
    Field(
        json_schema_extra={
            "maxProperties": MOST_MEMBERS,
            "additionalProperties": _schema(LEVELS - 1),
            # A CEL rule cannot look into values without a type, and a schema with further keys takes no fields beside them.
            "not": {"anyOf": [{"required": [name]} for name in OWN_FIELDS]},
        },
    ),
]

_NEEDS_MODEL = methods_with(Drafter.REQUIRED)
_WITHOUT_MODEL = methods_with(Drafter.NONE)
# vLLM's fly and synthetic accept drafts that the target would not have said.
_LOSSLESS = ("standard", "block")
TABLE = "num_speculative_tokens_per_batch_size"
"""vLLM's key for a draft length per batch size."""
# vLLM goes on with the last range's draft length beyond its end; nobody reads a range that ends where it begins.
_LAST_BATCH = 1024
_EXPECTED = f"{', '.join(METHODS)}, or a word ending in {MTP_ALIAS}"


def scheduled_config(config: Mapping[str, Any], schedule: Schedule) -> dict[str, Any]:
    """A speculative configuration with a schedule in place of one draft length."""
    ranges = schedule.ranges(max(_LAST_BATCH, schedule.tiers[-1][0]))
    longest = schedule.num_speculative_tokens
    return {**config, "num_speculative_tokens": longest, TABLE: [list(one) for one in ranges]}


def table_of(config: Mapping[str, Any] | None) -> Schedule | None:
    """The schedule that a speculative configuration holds; None without one.

    Raises:
        InputError: a table that vLLM would refuse.
    """
    given = (config or {}).get(TABLE)
    if given is None:
        return None
    if not isinstance(given, list) or not all(
        isinstance(row, list) and len(row) == 3 and all(type(value) is int for value in row) for row in given
    ):
        raise InputError(TABLE, f"{str(given)[:60]}", "a list of [first, last, k], three integers each")
    return Schedule.of_ranges(given, TABLE)


def without_drafts(config: Mapping[str, Any]) -> dict[str, Any]:
    """A speculative configuration less what says how long is drafted, and how much of it is verified: the drafter itself."""
    lengths = {"num_speculative_tokens", TABLE, ADAPTIVE_KEY}
    return {key: value for key, value in config.items() if key not in lengths}


def drafter_mark(config: Mapping[str, Any] | None) -> str | None:
    """D and 11 hexadecimal digits over a speculative configuration whatever its draft length; None for no speculation.

    A drafter that was trained again, or takes another option, is another one under the same name.
    """
    if config is None:
        return None
    drafter = {
        key: value for key, value in config.items() if key not in {"num_speculative_tokens", ADAPTIVE_KEY}
    }
    return f"d{hashlib.sha256(arm_json(drafter).encode()).hexdigest()[:11]}"


class SpeculativeMethod(Model):
    """One way of speculating, tried with several draft lengths, with a draft length per batch size, and adaptively."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name != 'none'",
            "the name none is taken by the arm without speculation, which is always a candidate",
            "another name",
            lambda method: method.name != "none",
            ".name",
        ),
        Rule(
            f"self.method in {list(METHODS)} || self.method.endsWith('{MTP_ALIAS}') "
            "|| (has(self.unknownMethod) && self.unknownMethod == 'Allow')",
            "method is no word of vLLM's that this release knows",
            f"{_EXPECTED}; for a word of a newer engine set unknownMethod: Allow",
            lambda method: drafter_of(method.method) is not None or method.unknown_method == "Allow",
            ".method",
        ),
        Rule(
            "self.method != 'custom_class' || (has(self.unknownMethod) && self.unknownMethod == 'Allow')",
            "method custom_class runs a class of your own in the engine",
            "unknownMethod: Allow beside it",
            lambda method: method.method != "custom_class" or method.unknown_method == "Allow",
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
            None,
            "options repeats method, model or num_speculative_tokens",
            "the fields method, model and draftLengths beside options",
            lambda method: not {*OWN_FIELDS} & method.options.keys(),
            ".options",
        ),
        Rule(
            None,
            f"options.{ADAPTIVE_KEY} makes another arm of every draft length, whose acceptance would be misread",
            "adaptiveVerification: Auto beside options",
            lambda method: method.options.get(ADAPTIVE_KEY) is not True,
            f".options.{ADAPTIVE_KEY}",
        ),
        Rule(
            None,
            "rejection_sample_method synthetic accepts drafts by chance, so its answers are wrong",
            "a lossless rejection_sample_method, or none",
            lambda method: method.options.get("rejection_sample_method") != "synthetic",
            ".options.rejection_sample_method",
        ),
        Rule(
            None,
            "rejection_sample_method is none that is known to keep the answers",
            f"{' or '.join(_LOSSLESS)}, or none",
            lambda method: (
                method.options.get("rejection_sample_method", _LOSSLESS[0]) in (*_LOSSLESS, "synthetic")
            ),
            ".options.rejection_sample_method",
        ),
    )

    name: str = Field(
        min_length=1,
        max_length=24,
        pattern=LABEL_PATTERN,
        description="Your name for it; its arms are called <name>/<draft length>.",
    )
    method: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[a-z][a-z0-9_]*$",
        description=f"vLLM's word: {_EXPECTED} (such as deepseek_mtp).",
    )
    unknown_method: Literal["Refuse", "Allow"] = row(
        "Allow: take any word in method, custom_class among them, and leave it to the engine. A "
        "word that the engine refuses ends its arm's calibration as EngineConfigRefused.",
        default="Refuse",
    )
    model: str | None = row(
        "Drafter: a Hugging Face repository or a path inside the container.",
        min_length=1,
        max_length=512,
        # A newline or blank inside would only confuse whoever reads the pod's command line.
        pattern=r"^[^\s]+$",
    )
    draft_lengths: tuple[Annotated[int, Field(ge=1, le=32)], ...] = row(
        "Draft lengths (tokens per step) to measure and choose from. A short and a long one predict "
        "those between to a few percent.",
        default=(2, 7),
        extra=LIST_SET,
        min_length=1,
        max_length=6,
    )
    schedule: Literal["Auto", "Never"] = row(
        "Auto: a calibration also makes a schedule, a draft length per batch size, from what the draft lengths "
        f"cost, and measures it as an arm of its own, <name>/schedule (methods {', '.join(SCHEDULED_METHODS)}). Never: it "
        "does not.",
        default="Auto",
    )
    adaptive_verification: Literal["Auto", "Never"] = row(
        "Auto: a calibration also measures vLLM's adaptive verification (enable_adaptive_verification, 0.28 and newer) as an "
        "arm of its own, <name>/adaptive, which drafts the longest of draftLengths in every step and verifies as many as pay "
        f"(methods {', '.join(ADAPTIVE_METHODS)}). An engine that is known to refuse it, with LoRA, pipeline stages or without full "
        "CUDA graphs, is not started with it. Never: it does not.",
        default="Auto",
    )
    options: Annotated[
        Options,
        Field(
            default_factory=dict,
            description="Further keys of vLLM's --speculative-config, passed on as they are: prompt_lookup_max, "
            "draft_tensor_parallel_size, quantization, ... Not method, model and num_speculative_tokens, which are the fields "
            f"method, model and draftLengths; rejection_sample_method only as {' or '.join(_LOSSLESS)}, which keep the answers. "
            f"At most {MOST_MEMBERS} keys, {LEVELS} levels of objects and lists, {MOST_ITEMS} items of a list, {LONGEST_TEXT} "
            f"characters of a text, {LONGEST} characters of JSON in all.",
        ),
    ]

    def strays_from(self, prefixes: Sequence[str]) -> str | None:
        """The fault of its drafter if an installation allows only names that begin so; None if there is none, or no prefix."""
        if not prefixes:
            return None
        if self.unknown_method == "Allow":
            return "unknownMethod: Allow, where the installation names the drafters that it allows"
        if self.model is None:
            return None
        if ".." not in self.model.split("/") and self.model.startswith(tuple(prefixes)):
            return None
        return f"drafter {self.model!r}; expected one that begins with {' or '.join(prefixes)}"

    def arms(self) -> tuple[Arm, ...]:
        """Its arms with one draft length each, by draft length."""
        return tuple(arm_drafting(self.method, k, self.name, None) for k in sorted(self.draft_lengths))

    @property
    def scheduled(self) -> bool:
        """Whether a schedule of it is measured, and may run once it was."""
        own = TABLE in self.options
        return self.schedule == "Auto" and takes_schedule(self.method) and not own

    def scheduled_arm(self, schedule: Schedule | None = None) -> Arm:
        """The arm that runs a schedule; of one that is still to be made k is the longest draft length it may take."""
        k = max(self.draft_lengths) if schedule is None else schedule.num_speculative_tokens
        return Arm(self.method, k, self.name, scheduled=True)

    @property
    def lengths(self) -> frozenset[tuple[int, bool]]:
        """Draft length of each of its arms, and whether it is verified adaptively."""
        return frozenset((arm.k, arm.adaptive) for arm in (*self.arms(), *self.adaptive_arms()))

    def adaptive_arms(self) -> tuple[Arm, ...]:
        """Its arm with adaptive verification; empty if none is wanted, or no model drafts."""
        if self.adaptive_verification == "Never" or not takes_adaptive(self.method):
            return ()
        return (arm_drafting(self.method, max(self.draft_lengths), self.name, ADAPTIVE),)

    @property
    def drafter(self) -> str | None:
        """The mark of its drafter, see `drafter_mark`."""
        return drafter_mark(
            {**self.options, "method": self.method, **({"model": self.model} if self.model else {})}
        )

    def speculative_config(self, drafts: Drafts) -> str:
        """The value of vLLM's --speculative-config for a way of drafting, in the one spelling that arms have."""
        longest = drafts if isinstance(drafts, int) else drafts.num_speculative_tokens
        config: dict[str, Any] = {**self.options, "method": self.method, "num_speculative_tokens": longest}
        if self.model is not None:
            config["model"] = self.model
        if isinstance(drafts, AdaptiveDrafts):
            config[ADAPTIVE_KEY] = True
        return arm_json(scheduled_config(config, drafts) if isinstance(drafts, Schedule) else config)


class Candidates(Model):
    """Arms that may run on the target beside no speculation, which is always a candidate."""

    methods: tuple[SpeculativeMethod, ...] = Field(
        min_length=1,
        max_length=6,
        json_schema_extra=list_map("name"),
        description="Methods to try. Every arm costs calibration time: two engine starts plus one point per load.",
    )

    def arms(self) -> tuple[Arm, ...]:
        """The arms that may run: no speculation first, then every method at every draft length, and adaptively."""
        return (NO_SPECULATION, *self.recognised())

    def measurable_arms(self) -> tuple[Arm, ...]:
        """Arms that a calibration measures, in its order: no speculation, and of every method its draft lengths before its schedule."""
        return (
            NO_SPECULATION,
            *(
                arm
                for method in self.methods
                for arm in (
                    *method.arms(),
                    *method.adaptive_arms(),
                    *((method.scheduled_arm(),) if method.scheduled else ()),
                )
            ),
        )

    def recognised(self) -> tuple[Arm, ...]:
        """The arms that a running configuration is compared with."""
        return tuple(arm for method in self.methods for arm in (*method.arms(), *method.adaptive_arms()))

    def named(self, name: str) -> Arm | None:
        """The arm of this name: one that may run before one that is only to be measured; None where there is none."""
        return next((arm for arm in (*self.arms(), *self.measurable_arms()) if arm.name == name), None)

    def method_of(self, arm: Arm) -> SpeculativeMethod | None:
        """The method whose arm this is, by name and by vLLM's word; None for no speculation and for foreign arms."""
        return next((m for m in self.methods if (m.name, m.method) == (arm.candidate, arm.method)), None)

    def drafters_of(self, arm: Arm) -> Sequence[str | None]:
        """Marks of the drafters that the pods of an arm may run, the measured drafter first."""
        method = self.method_of(arm)
        return (method.drafter,) if method is not None else ()

    def replaced(self, drafters: Mapping[str, str | None]) -> frozenset[str]:
        """Names of the arms that have another drafter than was measured under their name, by marks of then.

        An arm without a mark stands for its name alone.
        """
        own = self.drafters() if drafters else {}
        return frozenset(name for name, drafter in own.items() if drafters.get(name, drafter) != drafter)

    def drafters(self) -> dict[str, str | None]:
        """Mark of the drafter of each arm that is measured, by its name."""
        marks = {method.name: method.drafter for method in self.methods}
        return {arm.name: marks[arm.candidate] for arm in self.measurable_arms() if arm.candidate in marks}

    def speculative_config(self, arm: Arm) -> str:
        """The value of the target's annotation for `arm`; `null` for no speculation.

        Raises:
            KeyError: no candidate has this arm.
        """
        if arm == NO_SPECULATION:
            return arm_json(None)
        method = self.method_of(arm)
        if method is None or arm not in {*method.arms(), *method.adaptive_arms()}:
            raise KeyError(arm.name)
        return method.speculative_config(AdaptiveDrafts(arm.k) if arm.adaptive else arm.k)


class MeasuredCandidates(Candidates):
    """Candidates as the profile in force has measured them: a schedule, and a drafter, may run only as it was measured.

    Attributes:
        schedules: by name of the method; also of one that is no candidate any more, so that its pods are recognised.
        measured_drafters: marks of the drafters that were measured under the name of an arm, the profile in force first.
        unmeasured: names of arms that have another drafter now.
    """

    schedules: Mapping[str, Schedule]
    measured_drafters: Mapping[str, Sequence[str | None]]
    unmeasured: frozenset[str]

    @classmethod
    def of(
        cls,
        candidates: Candidates,
        schedules: Mapping[str, Schedule],
        drafters: Mapping[str, Sequence[str | None]] | None = None,
    ) -> MeasuredCandidates:
        """The candidates of a spec with measured schedules by name of the method, and measured drafters by name of the arm."""
        return cls.model_construct(
            methods=candidates.methods,
            schedules=dict(schedules),
            measured_drafters=dict(drafters or {}),
            unmeasured=candidates.replaced({name: marks[0] for name, marks in (drafters or {}).items()}),
        )

    def arms(self) -> tuple[Arm, ...]:
        """The arms of the spec whose drafter was measured, and of every method its measured schedule last."""
        return tuple(
            found
            for arm in self.measurable_arms()
            if (found := self.measured_schedule(arm) if arm.scheduled and not arm.adaptive else arm)
            is not None
            and found.name not in self.unmeasured
        )

    def recognised(self) -> tuple[Arm, ...]:
        """The arms of the spec, and every measured schedule, also of a method whose schedule is no candidate any more."""
        schedules = (self.measured_schedule(method.scheduled_arm()) for method in self.methods)
        return (*super().recognised(), *(arm for arm in schedules if arm is not None))

    def drafters_of(self, arm: Arm) -> Sequence[str | None]:
        """See Candidates."""
        return self.measured_drafters.get(arm.name) or super().drafters_of(arm)

    def measured_schedule(self, arm: Arm) -> Arm | None:
        """The arm of the same method that runs the schedule that was measured; None without one."""
        method = self.method_of(arm)
        schedule = self.schedules.get(method.name) if method is not None else None
        return method.scheduled_arm(schedule) if method is not None and schedule is not None else None

    def speculative_config(self, arm: Arm) -> str:
        """The annotation's value by the spec, with the measured table if the arm runs a schedule.

        Raises:
            KeyError: no candidate has this arm, or not as it was measured.
        """
        method = self.method_of(arm)
        if not arm.scheduled or arm.adaptive or method is None:
            return super().speculative_config(arm)
        if arm != self.measured_schedule(arm):
            raise KeyError(arm.name)
        return method.speculative_config(self.schedules[method.name])
