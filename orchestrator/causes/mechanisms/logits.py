"""Growing logits: of the attention, or of the output."""

from __future__ import annotations

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms import thresholds as at
from orchestrator.causes.mechanisms.finding import Finding, MakeFinding
from orchestrator.causes.mechanisms.mechanism import Mechanism
from orchestrator.causes.mechanisms.moves import LOWER_LR, Move, just
from orchestrator.causes.series import known


def logit_growth(evidence: Evidence, found: MakeFinding) -> Finding:
    """Attention logits or log Z that grow before the onset (Wortsman et al., arXiv 2309.14322).

    Supported where the largest attention logit is above 1e4, or above 1e3 and ten times its first reading, or where
    the mean of |log Z| is five times its first reading, all before the onset. Excluded where both are calm.
    """
    were_read = any(len(evidence.column(name)) for name in ("attention_logit", "log_z"))
    if evidence.has_logits is False and not were_read:
        return found("excluded", "the model has no logits")
    attention = evidence.column("attention_logit").between(0, evidence.until + 1)
    log_z = evidence.column("log_z").between(0, evidence.until + 1)
    numbers, verdicts = [], []
    began: list[int] = []
    if len(attention):
        highest, first = known(attention.largest()), float(attention.value_N[0])
        numbers.append(f"the largest attention logit went from {first:.3g} to {highest:.3g}")
        is_high = highest > at.ATTENTION_LOST or highest > max(at.ATTENTION_HIGH, 10 * first)
        verdicts.append("supported" if is_high else "excluded" if highest < at.ATTENTION_CALM else "unknown")
        began += [known(attention.first(lambda logit_N: logit_N > at.ATTENTION_HIGH))] if is_high else []
    if len(log_z):
        highest, first = known(log_z.largest()), float(log_z.value_N[0])
        numbers.append(f"mean |log Z| went from {first:.3g} to {highest:.3g}")
        is_high = highest > at.LOG_Z_HIGH * first
        verdicts.append("supported" if is_high else "excluded" if highest < at.LOG_Z_CALM * first else "unknown")
        began += [known(log_z.first(lambda log_z_N: log_z_N > at.LOG_Z_HIGH * first))] if is_high else []
    if not verdicts:
        return found("unknown", "logits were not read")
    if "supported" in verdicts:
        return found("supported", "logits had grown before the onset", numbers, min(began))
    if "unknown" in verdicts:
        return found("unknown", "logits had grown, but not to where runs are known to be lost", numbers)
    return found("excluded", "logits were calm up to the onset", numbers)


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
