"""The settings of objectives: the tables [objective] and [head], the checks that give rewards, and
the table of all objectives.

Invariant: `OBJECTIVES` is the only list of objectives. The values of `kind`, `finetune keys`,
training and evaluation follow from it. A kind has only the keys that it uses, so no setting is
ignored; the defaults are those of TRL if it has the objective.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self, Union, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from chatapp.common.validation import key_of

AuxSpan = Literal["prompt", "prompt-without-template", "full"]
SupervisedSpan = Literal["response", "prompt", "prompt-without-template", "full"]


class Section(BaseModel):
    """A table of a configuration file. An unknown key is an error that names the key, so that a
    misspelt option never silently trains something else.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Metric = Literal["loss", "accuracy", "macro_f1", "exact_match", "pearson", "spearman"]
"""The figures of held-out rows."""


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern


def _names_function(place: str) -> str:
    file, _, name = place.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"is {place!r}; expected file.py:function")
    return place


class _Check(Section):
    """A number for a reply, from 0 to 1 unless a model or the user's function gives it."""

    weight: float = Field(1.0, ge=-1000, le=1000, description="weight of the check's result")

    def relocated(self, there: Callable[[str], str]) -> Self:
        """A copy with its paths mapped by `there`."""
        return self


class ExactMatch(_Check):
    """1 if the reply equals that of the row, ignoring white space, else 0."""

    kind: Literal["exact_match"]


class NumericMatch(_Check):
    """1 if the last number in the reply is the last one in the row's reply, else 0."""

    kind: Literal["numeric_match"]


class Regex(_Check):
    """1 if the expression is found in the reply, else 0."""

    kind: Literal["regex"]
    pattern: Annotated[str, AfterValidator(_compiles)] = Field(
        min_length=1, description="the pattern to search for, in Python's syntax"
    )


class Length(_Check):
    """1 between the bounds; outside it falls linearly, to 0 at nothing and at twice the most."""

    kind: Literal["length"]
    least: int = Field(0, ge=0, description="minimum length in tokens")
    most: int = Field(512, ge=1, description="maximum length in tokens")

    @model_validator(mode="after")
    def _in_order(self) -> "Length":
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, more than most, {self.most}")
        return self


class Format(_Check):
    """1 if the whole reply has the form, else 0."""

    kind: Literal["format"]
    form: Literal["number", "json", "line"] = Field(
        description="a number; a JSON object or list; one line that is not empty"
    )


class Model(_Check):
    """The score by a reward model."""

    kind: Literal["model"]
    run: str = Field(min_length=1, description="a run with objective.kind = 'reward'")

    def relocated(self, there: Callable[[str], str]) -> Self:
        return self.model_copy(update={"run": there(self.run)})


class Function(_Check):
    """The result of a user's function, which runs like any program of theirs."""

    kind: Literal["function"]
    function: Annotated[str, AfterValidator(_names_function)] = Field(
        description="as in rewards.py:score; called with prompt, reply and reference, three texts, "
        "it gives a number. It is code of your own, and runs"
    )
    timeout: float = Field(10.0, gt=0, le=3600, description="time limit of a call in seconds")

    def relocated(self, there: Callable[[str], str]) -> Self:
        file, colon, name = self.function.rpartition(":")
        return self.model_copy(update={"function": there(file) + colon + name})


class WithheldFunction(Function):
    """A function that may not run: it gives every reply 0."""


Check = Annotated[
    Annotated[ExactMatch, Tag("exact_match")]
    | Annotated[NumericMatch, Tag("numeric_match")]
    | Annotated[Regex, Tag("regex")]
    | Annotated[Length, Tag("length")]
    | Annotated[Format, Tag("format")]
    | Annotated[Model, Tag("model")]
    | Annotated[Function, Tag("function")],
    Discriminator("kind"),
]
"""Every kind of check."""


class ObjectiveSettings(Section):
    """The table [objective] of one kind."""

    kind: str

    @property
    def stops(self) -> Sequence[str]:
        """Texts that end a reply, in addition to those of the template."""
        return ()

    def relocated(self, there: Callable[[str], str]) -> Self:
        """A copy with its paths mapped by `there`."""
        return self


class L3Settings(ObjectiveSettings):
    """L3 = L2 + λ·L1: the response loss and the auxiliary language-model loss."""

    kind: Literal["l3"] = "l3"
    aux_weight: float = Field(
        0.0,
        ge=0,
        le=100,
        description="λ, the weight of L1; 0 trains on the responses only, which measured as well",
    )
    aux_span: AuxSpan = Field("prompt", description="which tokens count for L1")
    aux_norm: Literal["token", "sequence"] = Field(
        "token", description="L1 is a mean over tokens, or over the means of the examples"
    )
    aux_decay: Literal["constant", "linear"] = Field(
        "constant", description="λ stays, or falls to 0 in a straight line"
    )


class DpoSettings(ObjectiveSettings):
    """Direct preference optimization, plus λ·L1 of the chosen replies."""

    kind: Literal["dpo"]
    loss: Literal["sigmoid", "ipo", "hinge"] = Field(
        "sigmoid", description="loss function of the difference between chosen and rejected"
    )
    beta: float = Field(
        0.1, gt=0, le=100, description="β (τ for ipo): higher stays closer to the reference"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="for sigmoid: assumed fraction of wrong preferences"
    )
    aux_weight: float = Field(
        0.0, ge=0, le=100, description="λ of the supervised term, which keeps chosen replies likely"
    )
    aux_span: SupervisedSpan = Field(
        "response", description="which tokens of the chosen sequence count for L1"
    )


class KtoSettings(ObjectiveSettings):
    """Kahneman-Tversky optimization, of replies with independent verdicts."""

    kind: Literal["kto"]
    beta: float = Field(0.1, gt=0, le=100, description="β: higher stays closer to the reference")
    desirable_weight: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="weight of good replies; default: the rarer kind weighs as much in "
        "total as the other, whose weight is 1",
    )
    undesirable_weight: float | None = Field(
        None, gt=0, le=1000, description="weight of bad replies; default: as for good ones"
    )


class OrpoSettings(ObjectiveSettings):
    """Odds-ratio preference optimization, which needs no reference."""

    kind: Literal["orpo"]
    beta: float = Field(0.1, gt=0, le=100, description="weight of the odds ratio, the paper's λ")
    span: SupervisedSpan = Field(
        "full", description="which tokens of the chosen sequence count for the supervised loss"
    )


class CpoSettings(ObjectiveSettings):
    """Contrastive preference optimization: DPO without a reference, plus λ·L1."""

    kind: Literal["cpo"]
    beta: float = Field(0.1, gt=0, le=100, description="β, which multiplies log-probabilities")
    aux_weight: float = Field(1.0, ge=0, le=100, description="λ of L1 of the chosen replies")


class SimpoSettings(ObjectiveSettings):
    """Simple preference optimization: mean log-probabilities, a margin, and no reference."""

    kind: Literal["simpo"]
    beta: float = Field(
        2.0, gt=0, le=100, description="β, which multiplies mean log-probabilities, as in the paper"
    )
    gamma: float = Field(
        1.0, ge=0, le=100, description="γ, the margin by which the chosen reply has to win"
    )


class RewardSettings(ObjectiveSettings):
    """A reward model: a linear head that scores a whole reply, by Bradley-Terry."""

    kind: Literal["reward"]
    centring: float = Field(
        0.0,
        ge=0,
        le=100,
        description="weight of the term that keeps the mean of two rewards at 0; try 0.01",
    )


class MaskedSettings(ObjectiveSettings):
    """Masked tokens are predicted from both sides, as BERT is trained (Devlin et al., 2019)."""

    kind: Literal["masked"]
    share: float = Field(
        0.15,
        gt=0,
        lt=1,
        description="share of a row's tokens to predict; 80 % of them are masked, 10 % replaced by "
        "a random token, 10 % unchanged",
    )


class GrpoSettings(ObjectiveSettings):
    """Group relative policy optimization, of replies that can be checked."""

    kind: Literal["grpo"]
    rewards: list[Check] = Field(
        min_length=1,
        description="the checks; a reply's reward is the weighted sum of their results",
    )
    replies: int = Field(
        8, ge=2, le=1024, description="number of replies sampled per prompt (the group)"
    )
    max_tokens: int = key_of("max_tokens", 512)
    stop: list[str] = Field(
        [], description="strings that end a reply, in addition to the template's"
    )
    temperature: float = key_of(
        "temperature", 1.0, above_low=True, meaning="higher varies the replies more"
    )
    top_p: float = key_of("top_p", 1.0)
    top_k: int = key_of("top_k", 0)
    beta: float = Field(
        0.0,
        ge=0,
        le=100,
        description="β, weight of the KL divergence from the reference; 0 needs no reference",
    )
    epsilon: float = Field(0.2, gt=0, lt=1, description="ε: ratios are clipped at 1 - ε")
    epsilon_high: float | None = Field(
        None, gt=0, le=100, description="ratios are clipped at 1 + this; default: epsilon"
    )
    iterations: int = Field(
        1,
        ge=1,
        le=100,
        description="steps per set of sampled replies; an epoch uses that many times fewer prompts",
    )
    scale_rewards: bool = Field(
        True, description="divide a group's advantages by the standard deviation of its rewards"
    )

    @property
    def stops(self) -> Sequence[str]:
        return self.stop

    def relocated(self, there: Callable[[str], str]) -> Self:
        return self.model_copy(
            update={"rewards": [reward.relocated(there) for reward in self.rewards]}
        )


class DistillationSettings(ObjectiveSettings):
    """Distillation: the next-token distributions of a teacher with the same vocabulary."""

    kind: Literal["distillation"]
    teacher: str = Field(
        min_length=1, description="any model that can be trained here, with the same tokenizer"
    )
    teacher_precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="number format of the teacher's weights; bfloat16 takes half"
    )
    beta: float = Field(
        0.5,
        ge=0,
        le=1,
        description="β of the generalized Jensen-Shannon divergence: 0 is the forward KL, which "
        "covers all that the teacher may write, 1 the reverse KL, which keeps to the likeliest",
    )
    temperature: float = Field(
        1.0, gt=0, le=100, description="which the logits of both models are divided by"
    )
    own_replies: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the replies that the student draws itself in each step, in place "
        "of the row's last one",
    )
    max_tokens: int = key_of("max_tokens", 128)

    def relocated(self, there: Callable[[str], str]) -> Self:
        teacher = self.teacher if self.teacher == "bundled" else there(self.teacher)
        return self.model_copy(update={"teacher": teacher})


class Head(Section):
    """A linear head on the last token instead of a reply (Radford et al., 2018)."""

    task: Literal["classification", "entailment", "similarity", "multiple-choice"] = Field(
        description="which fields a row has, and how they are read"
    )
    problem_type: Literal["single_label_classification", "regression"] = Field(
        "single_label_classification",
        description="regression: numeric labels, trained with the mean squared error",
    )
    labels: list[str] = Field([], description="the classes in order; default: those of the rows")
    delimiter: str = Field("\n", min_length=1, description="text between the two sentences")


OBJECTIVES: Mapping[type[Section], str] = {
    L3Settings: "l3:L3",
    DpoSettings: "pairs:Dpo",
    KtoSettings: "kto:Kto",
    OrpoSettings: "pairs:Orpo",
    CpoSettings: "pairs:Cpo",
    SimpoSettings: "pairs:Simpo",
    RewardSettings: "pairs:Reward",
    GrpoSettings: "grpo:Grpo",
    DistillationSettings: "distillation:Distillation",
    MaskedSettings: "masked:Masked",
    Head: "heads:HeadObjective",
}
"""Every objective: its table of the configuration, and its module and class in
`finetune.objectives`, by name because they import torch, which `finetune keys` must not wait for. A
configuration with a [head] has that objective; else `kind` of [objective] chooses.
"""


def _kind(value: object) -> str:
    kind = value.get("kind", "l3") if isinstance(value, dict) else getattr(value, "kind", "l3")
    return str(kind)


if TYPE_CHECKING:
    Objectives = ObjectiveSettings
else:
    Objectives = Annotated[
        Union[  # noqa: UP007
            tuple(
                Annotated[table, Tag(get_args(table.model_fields["kind"].annotation)[0])]
                for table in OBJECTIVES
                if "kind" in table.model_fields
            )
        ],
        Discriminator(_kind),
    ]
    """The tables [objective]; without `kind` it is that of l3."""
