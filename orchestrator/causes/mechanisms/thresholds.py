"""All thresholds of a diagnosis, with their sources; docs/diagnosis.md repeats them.

"Ours" marks a number that was chosen on built-in objectives with planted causes, not taken from a paper.
"""

from __future__ import annotations

# --- the edge of stability -----------------------------------------------------------------------
# Curvature over threshold. Above 1 a step overshoots: Cohen et al. (arXiv 2207.14484), Bai et al. (arXiv 2506.04805).
EDGE = 1.0
# Measurements are lower bounds and rare: they exclude a step over the edge only where below this. Ours.
NEAR_EDGE = 0.5
# Share of the readings at the full learning rate that exceed it, in a run over the edge throughout. Ours.
MOSTLY_OVER, SELDOM_OVER = 0.5, 0.2
# Readings over the threshold that are no accident of one batch. Ours.
LEAST_OVER = 2
# Readings count from where the learning rate is this share of the highest before the onset. Ours.
HALF_RATE = 0.5
# A run that trained this many steps at its full learning rate was not over the edge from the start. Ours.
START_STEPS = 50
# A run whose loss had not fallen by this share before its onset never left its start. Ours.
LEARNED = 0.15

# --- the second moment ---------------------------------------------------------------------------
# |g|^2 / sum(vhat): well below 1, v only decays. Measured: 0.001 to 0.08 twenty steps before a spike's peak on the
# regression of Bai et al., and 5 to 15 at the peak. Below the first limit v only decays, above the second it keeps up;
# in between the curvature must decide. At the peak it must exceed the third. All three are ours.
DECAYED, KEPT_UP, LAGGING = 0.1, 0.5, 1.0
# Steps before the onset in which v must have decayed, and readings whose median is taken. Ours.
DECAY_WINDOW, DECAY_SMOOTHING = 50, 5
# An instability grows: steps from where the gradient leaves its past level to the peak. Ours.
GROWTH_STEPS, GROWTH_LEVEL = 3, 2.0
# Warmup that Adam needs, in units of 1 / (1 - beta2): Ma and Yarats (arXiv 1910.04209).
WARMUP_RULE = 2.0
# v is young before 1 / (1 - beta2) steps; with fewer steps than this a run is not said to have died young. Ours.
LEAST_YOUNG = 10
# RMS of mhat / sqrt(vhat): 1 is sign descent, 0.23 what independent gradients give at beta1 = 0.9. The limit is ours.
SIGN_DESCENT = 0.5
# RMS of the update over the learning rate above which momentum has outlived v. Measured in the sweeps of sweeps/knobs:
# more, and at least 6, shortly before 974 of 981 onsets with beta2 < beta1^2 (5 of the others have bad batches), and
# never above 1.2 in 457 runs with a longer memory. The limit is ours.
LONG_STEP = 2.0

# --- epsilon and the layers ----------------------------------------------------------------------
# RMS(g) / eps below which epsilon affects the step: Wortsman et al. (arXiv 2309.14322).
EPSILON_FLOOR = 10.0
# Upper bound on a model's coordinates: bounds RMS(g) from below where only |g| is known. Ours.
MOST_COORDINATES = 1e12
# Relative update of the deep layers over that of the shallow ones (after Molybog et al., arXiv 2304.09871). Ours.
OUT_OF_STEP = 100.0
RECENT_READINGS = 10
# RMS of the updates of the deep third of the blocks over that of the shallow third above which these stand still.
# Measured before a change of the text, on gpt at beta2 0.95 and lr up to 0.01: 11 to 140 with post-norm and an eps of
# 1e-3 or more, 0.5 to 2.8 with post-norm and eps 1e-8 or with pre-norm. The limit is ours.
SHALLOW_STALL = 10.0
# Readings by depth before the onset that it takes. Ours.
STALL_READINGS = 3
# Times its usual norm before that a gradient grows to at once where the data change. Measured: 30 and more. Ours.
BURST = 10.0

# --- logits --------------------------------------------------------------------------------------
# Largest attention logit: all runs above 1e4 diverged, and the loss is worse from 1e3 on, Wortsman et al. Below 100,
# where Kimi K2 caps them, nothing is known to happen.
ATTENTION_LOST, ATTENTION_HIGH, ATTENTION_CALM = 1e4, 1e3, 100.0
# Growth of mean |log Z| over its first reading. Ours.
LOG_Z_HIGH, LOG_Z_CALM = 5.0, 2.0

# --- clipping ------------------------------------------------------------------------------------
# The gradient is clipped to less than this, on this share of steps. Ours.
SATURATED_FACTOR, SATURATED_SHARE = 0.1, 0.9

# --- single batches ------------------------------------------------------------------------------
# Robust deviations above the losses before it by which one step jumps and its last neighbours do not. Ours, after the 6
# deviations of OLMo-core's monitor.
JUMP, CALM_BEFORE = 6.0, 3.0
JUMP_HISTORY, NEIGHBOURS = 50, 3
LEAST_HISTORY = 20
# Steps in which half of the jump must be gone. Ours.
FALLS_BACK_STEPS, FALLS_BACK = 5, 0.5
# The jump may be this far from the onset. Ours.
JUMP_REACH = 2
# Readings of the curvature before the jump whose median decides whether the run was over the edge.
EDGE_READINGS = 5
# Share of the trials with the same batch that jump at it. Ours.
SHARED_JUMP = 0.5

# --- half precision ------------------------------------------------------------------------------
# Skipped updates around the onset, beyond those of the search for a loss scale. Ours.
SKIPPED = 5
# A loss scale that has fallen to this has found no gradient that fits. Ours.
LEAST_SCALE = 1.0
OVERFLOW_WINDOW = 20
