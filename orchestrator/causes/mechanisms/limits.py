"""All limits of a diagnosis with their sources; docs/diagnosis.md repeats them.

"Ours" marks a number that was chosen on built-in objectives with planted causes, not taken from a paper.
"""

from __future__ import annotations

# --- curvature over its threshold ---
# Above 1 a step overshoots: Cohen et al. (arXiv 2207.14484), Bai et al. (arXiv 2506.04805).
THRESHOLD = 1.0
# Measurements are rare lower bounds, so they exclude an overshoot only below this. Ours.
NEAR_THRESHOLD = 0.5
# Share of the readings at the full learning rate above the threshold, in a run that overshoots throughout. Ours.
MOSTLY_OVER, SELDOM_OVER = 0.5, 0.2
# Readings above the threshold that one batch does not explain. Ours.
MIN_OVER = 2
# A run with so large a share of its readings this far above trains over the threshold whatever v does. Measured in
# sweeps/causes: none above 1.1 in the 300 steps before two onsets where v decays, half and more above 2 in three runs
# without norms. Ours.
FAR_OVER, OFTEN_FAR = 2.0, 0.33
# Readings count once the learning rate has this share of its maximum before the onset. Ours.
HALF_RATE = 0.5
# A run that trained for this many steps at its full learning rate did not overshoot from the start. Ours.
START_STEPS = 50
# A run whose loss fell by less than this share before the onset never got away from its start. Ours.
LEARNED = 0.15

# --- the second moment ---
# |g|^2 / sum(vhat) is well below 1 while v only decays. Measured on the regression of Bai et al.: 0.001 to 0.08 twenty
# steps before the peak of a spike, 5 to 15 at the peak. Below the first limit v only decays, above the second it keeps
# up. In between nobody knows: so it is in language models with small batches, where forks refute that v decayed. At the
# peak the third limit has to be exceeded. All three are ours.
DECAYED, KEPT_UP, LAGGING = 0.1, 0.5, 1.0
# Above it a single gradient has raised v, which is then far above |g|^2 without a decay: 20 to 96 in four cells of
# beta2_eps, where forks with v at rest fail as the others do, as in its three other trials with one; at most 2 in
# the planted decays. The limit is ours.
INFLATED = 10.0
# Steps before the onset in which v must have decayed, and readings per median. Ours.
DECAY_WINDOW, DECAY_SMOOTHING = 50, 5
# An instability grows: steps from the last gradient below GROWTH_LEVEL times its past level to the peak. Ours.
GROWTH_STEPS, GROWTH_LEVEL = 3, 2.0
# Warmup that Adam needs, in units of 1 / (1 - beta2): Ma and Yarats (arXiv 1910.04209).
WARMUP_RULE = 2.0
# v is young for 1 / (1 - beta2) steps, and at least for this many. Ours.
MIN_YOUNG_STEPS = 10
# RMS of mhat / sqrt(vhat): 1 is sign descent, independent gradients give 0.23 at beta1 = 0.9. The limit is ours.
SIGN_DESCENT = 0.5
# RMS of the update over the learning rate above which momentum has outlived v. Measured in the sweeps of sweeps/knobs:
# at least 6 shortly before 974 of 981 onsets with beta2 < beta1^2 (5 of the others have bad batches), and at most 1.2
# in 457 runs with a longer memory. The limit is ours.
LONG_STEP = 2.0

# --- rounding ---
# Mean cross-entropies below which most probabilities round to 1: a hundred times exp(-16.6) in float32, four times
# exp(-6) in 16 bits (the gaps are of arXiv 2605.06152); and how far above a loss excludes it. On the model of
# sweeps/causes/absorption.yaml a mean of 4e-6 is 2 % lower than in float64, and one of 4e-7 40 %. The factors are ours.
ABSORBED, ABSORBED_HALF, NEARLY_ABSORBED = 6e-6, 1e-2, 100.0

# --- norms of weights ---
# RMS of a layer group's weights over its highest: below the first it has collapsed, above the second it kept its norm.
# A norm is held from where it was this much larger than at the onset: the curvature is then 2.25 times smaller. Ours.
NORM_COLLAPSED, NORM_KEPT, LARGE_NORM = 0.5, 0.9, 1.5

# --- epsilon and the layers ---
# RMS(g) / eps below which epsilon affects the step: Wortsman et al. (arXiv 2309.14322).
EPSILON_FLOOR = 10.0
# Upper bound on the number of a model's coordinates: bounds RMS(g) from below if only |g| is known. Ours.
MAX_COORDINATES = 1e12
# Relative update of the deep layers over that of the shallow ones (after Molybog et al., arXiv 2304.09871). Ours.
OUT_OF_STEP = 100.0
RECENT_READINGS = 10
# RMS of the updates of the deep third of the blocks over that of the shallow third above which the latter stand still.
# Measured before a change of the text, on gpt at beta2 0.95 and lr up to 0.01: 11 to 140 with post-norm and an eps of
# 1e-3 or more, 0.5 to 2.8 with post-norm and eps 1e-8 or with pre-norm. The limit is ours.
SHALLOW_STALL = 10.0
# Readings by depth that are needed before the onset. Ours.
STALL_READINGS = 3
# Factor by which the gradient norm grows at once if the data change. Measured: 30 and more. Ours.
BURST = 10.0

# --- logits ---
# Largest attention logit: all runs above 1e4 diverged, and the loss suffers from 1e3, Wortsman et al. Below 100, where
# Kimi K2 caps them, no harm is known.
ATTENTION_LOST, ATTENTION_HIGH, ATTENTION_CALM = 1e4, 1e3, 100.0
# Growth of mean |log Z| over its first reading. Ours.
LOG_Z_HIGH, LOG_Z_CALM = 5.0, 2.0

# --- clipping ---
# Clipping is saturated if it leaves less than this of the gradient, on this share of the steps. Ours.
SATURATED_FACTOR, SATURATED_SHARE = 0.1, 0.9

# --- single batches ---
# A jump is this many robust deviations above the losses before it, while its last neighbours stay within the second
# limit. Ours, after the 6 deviations of OLMo-core's monitor.
JUMP, CALM_BEFORE = 6.0, 3.0
JUMP_HISTORY, NEIGHBOURS = 50, 3
MIN_HISTORY = 20
# Steps within which half of the jump must be gone. Ours.
FALLS_BACK_STEPS, FALLS_BACK = 5, 0.5
# Steps between the jump and the onset. Ours.
JUMP_REACH = 2
# Readings of the curvature before the jump; their median says whether the run overshot already. Ours.
CURVATURE_READINGS = 5
# Share of the trials with the same batch that jump at it. Ours.
SHARED_JUMP = 0.5

# --- half precision ---
# Skipped updates around the onset, more than the search for a loss scale takes. Ours.
SKIPPED = 5
# A loss scale that has fallen to this found no gradient that fits. Ours.
MIN_LOSS_SCALE = 1.0
OVERFLOW_WINDOW = 20
