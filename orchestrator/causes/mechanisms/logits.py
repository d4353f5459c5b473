"""Growing logits, in the attention or at the output."""

from __future__ import annotations

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import LOWER_LR, Finding, MakeFinding, Mechanism, Move, just
from orchestrator.causes.series import known


def logit_growth(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Attention logits or log Z that grow before the onset (Wortsman et al., arXiv 2309.14322).

    Supported if the largest attention logit is above 1e4, or above 1e3 and ten times its first reading, or if the mean
    of |log Z| is five times its first reading, all before the onset. Excluded if both are calm.
    """
    columns = {name: evidence.column(name) for name in ("attention_logit", "log_z")}
    if evidence.has_logits is False and not any(map(len, columns.values())):
        return finding("excluded", "the model has no logits")
    numbers, verdicts = [], []
    began: list[int] = []
    for name, column in columns.items():
        readings = column.between(0, evidence.until + 1)
        if not len(readings):
            continue
        highest, first = known(readings.largest()), float(readings.value_N[0])
        if name == "attention_logit":
            numbers.append(f"the largest attention logit went from {first:.3g} to {highest:.3g}")
            high, calm = min(at.ATTENTION_LOST, max(at.ATTENTION_HIGH, 10 * first)), at.ATTENTION_CALM
            start = at.ATTENTION_HIGH
        else:
            numbers.append(f"mean |log Z| went from {first:.3g} to {highest:.3g}")
            high, calm = at.LOG_Z_HIGH * first, at.LOG_Z_CALM * first
            start = high
        verdicts.append("supported" if highest > high else "excluded" if highest < calm else "unknown")
        if highest > high:
            began.append(int(readings.step_N[readings.value_N > start][0]))
    if not verdicts:
        return finding("unknown", "logits were not read")
    if "supported" in verdicts:
        return finding("supported", "logits had grown before the onset", numbers, min(began))
    if "unknown" in verdicts:
        return finding("unknown", "logits had grown, but not to where runs are known to be lost", numbers)
    return finding("excluded", "logits were calm up to the onset", numbers)


LOGIT_GROWTH = Mechanism(
    key="logit_growth",
    title="growth of the logits",
    find=logit_growth,
    label="logits",
    colour="#56B4E9",
    moves=(
        Move("qk_norm", "switch", "normed queries and keys bound the attention logits (Wortsman et al.)", just(True)),
        Move("z_loss", "raise", "a penalty on log^2 Z holds the output logits (Wortsman et al.: 1e-4)", just(1e-4)),
        LOWER_LR,
    ),
)
