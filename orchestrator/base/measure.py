"""What settings are compared by: a loss, or a score with its direction; and what the name of a metric implies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.base.trial_result import TrialResult

SCORE = "score"  # the column of a score, and the fact with its name and direction
MAXIMIZED = ("learned_share",)  # other columns in which more is better
_SCORES = re.compile(
    r"(f[12]|fbeta|acc|accuracy|accuracies|auc|auroc|auprc|roc|ap|map|bleu|rouge|meteor|chrf|rewards?|returns?|scores?|"
    r"iou|miou|dice|precision|recall|psnr|ssim|r2|mcc|kappa|ndcg|mrr|elo|fitness|success|win|winrate)\d*"
)
_LOSSES = re.compile(
    r"(nll|errors?|err|perplexity|ppl|entropy|bpb|bpc|bits|mse|mae|rmse|costs?|regret|wer|cer|fid|kl|penalty|.*loss.*)\d*"
)
_MOVING = re.compile(r"value|critic|td|[vq]f?\d?")  # whose targets the agent itself changes
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Measure:
    """A ``column`` of trials that settings are compared by, and the ``name`` that people know it by.

    ``values`` are those of a metric without a column, by the id of a trial.
    """

    column: str
    name: str
    maximize: bool = False
    values: Mapping[str, float] | None = field(default=None, repr=False)

    def of(self, trial: TrialResult) -> float | None:
        """The value of ``trial``, or None."""
        return getattr(trial, self.column) if self.values is None else self.values.get(trial.trial_id)

    def cost(self, value: float) -> float:
        """A number that is lower the better ``value`` is; the cost of a cost is the value."""
        return -value if self.maximize else value

    def final_cost(self, trial: TrialResult) -> float | None:
        """The cost of a trial's value, or of its final loss if a loss is missing."""
        value = self.of(trial)
        if value is None and self.is_loss:
            value = trial.final_loss
        return None if value is None else self.cost(value)

    def initial_cost(self, trial: TrialResult) -> float | None:
        """The cost before training, or None if unknown."""
        value = trial.initial_loss if self.is_loss else trial.initial_score if self.column == SCORE else None
        return None if value is None else self.cost(value)

    @property
    def is_loss(self) -> bool:
        """Whether it is one of the losses of a trial."""
        return self.values is None and self.column.endswith("loss")

    @property
    def words(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")

    @property
    def title(self) -> str | None:
        """The title of its median on a map, if no column says it."""
        return f"median {self.words}{self.note}" if self.column == SCORE else None

    @property
    def kind(self) -> str:
        """`loss`, or the name of another metric in words."""
        return "loss" if self.is_loss else self.words

    @property
    def note(self) -> str:
        """The direction in brackets, for a metric that is not a loss."""
        return "" if self.is_loss else f" ({self.better} is better)"

    @property
    def better(self) -> str:
        """`higher` or `lower`."""
        return "higher" if self.maximize else "lower"

    @property
    def best(self) -> str:
        """`highest` or `lowest`."""
        return "highest" if self.maximize else "lowest"


FINAL_LOSS = Measure("final_loss", "final_loss")


def score_fact(name: str, *, maximize: bool) -> str:
    """Return the text of the fact ``SCORE``."""
    return json.dumps({"name": name, "maximize": maximize})


def score_of(facts: Mapping[str, str]) -> Measure | None:
    """Return the score by which a sweep compares its settings, or None if that is a loss."""
    known = json.loads(facts.get(SCORE, "null"))
    return None if known is None else Measure(SCORE, str(known["name"]), bool(known["maximize"]))


def column_measure(metric: str, facts: Mapping[str, str]) -> Measure:
    """Return a metric of maps with its direction; the score of a sweep with these ``facts`` also by its own name."""
    score = score_of(facts)
    if score is not None and metric in (SCORE, score.name):
        return score
    return Measure(metric, metric, metric in MAXIMIZED)


def names_a_loss(name: str) -> bool:
    """Whether a metric of this name is certainly better when it is lower."""
    return any(map(_LOSSES.fullmatch, _words(name)))


def names_a_score(name: str) -> bool:
    """Whether a metric of this name is usually better when it is higher: accuracy, F1, BLEU, reward, return."""
    return not names_a_loss(name) and any(map(_SCORES.fullmatch, _words(name)))


def names_a_moving_loss(name: str) -> bool:
    """Whether a loss of this name measures an agent against targets that rise with what it gains: value, critic, TD."""
    return names_a_loss(name) and any(map(_MOVING.fullmatch, _words(name)))


def unjudged(name: str) -> str | None:
    """Return why the detector cannot judge a curve of this name, or None."""
    if names_a_score(name):
        return "is the name of a score, and the detector judges losses"
    return "rises while an agent learns, since its targets do" if names_a_moving_loss(name) else None


def _words(name: str) -> set[str]:
    spellings = name.lower(), _CAMEL.sub("_", name).lower()
    return {word for text in spellings for word in re.findall(r"[a-z]+\d*", text)}
