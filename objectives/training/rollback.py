"""Rollback: a member whose loss spikes returns to an earlier good snapshot and skips the data of the spike.

PaLM (Chowdhery et al., arXiv 2204.02311, section 5.1) restarted from a checkpoint about 100 steps before each of some
20 spikes and skipped 200 to 500 batches; the same batches did no harm from another checkpoint. Here each member does
this automatically, at the step of the spike:

- A *spike* is a loss more than 6 standard deviations above the mean of the previous 128 losses, the rule and numbers
  by which OLMo-core's ``SkipStepOptimizer`` skips an update. The loss itself is not among the 128, the deviation is
  the sample deviation, and nothing is judged before there are 64 losses. A non-finite loss or gradient is a spike at
  any time.
- A *snapshot* is the full state of a member: parameters, optimizer states, its mask, its counts of steps and
  updates, and its window of losses. One is taken every ``rollback_every`` steps of the member. It becomes good if no
  spike comes before the next one is due; the start counts as good. So a rollback goes back one to two times
  ``rollback_every`` steps if no spike came before: with 50, PaLM's 100.
- The member's step count continues: a rolled-back step stays a step of the run, with its loss in the curve. The
  schedule, curriculum and bias correction return to the snapshot, as in a restart from a checkpoint, so a run
  with a rollback ends before its schedule does.
- Data continue with the batch of the spike, after skipping ``rollback`` more batches. The batches between snapshot
  and spike are not seen again.
- The window returns to the snapshot's, without the losses since. So a spike right after a rollback is detected like
  any other.
- After ``MOST_IN_A_ROW`` rollbacks to one snapshot (our number), spikes pass until another snapshot is good: a
  member that cannot be rescued trains on, and a non-finite one stays masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.training_config import TrainingConfig

# Shapes: K members, R of them with rollback, W losses per window.

WINDOW, LEAST_HISTORY, DEVIATIONS = 128, 64, 6.0
MOST_IN_A_ROW = 5

Live = Mapping[str, torch.Tensor]


class Rollback:
    """Windows and snapshots of the R members of a pack with rollback.

    ``live`` is the state that members continue with: tensors of shape (K, ...) that are read and, on a rollback,
    written in place. Whether a member rolls back is a function of its own losses, independent of the other members. The
    device holds two snapshots for each of the R members, none for the others.

    Data are drawn on the host, so the host waits for the device once per step to learn which members rolled back.
    """

    def __init__(self, configs: Sequence[TrainingConfig], ages: Sequence[int], live: Live) -> None:
        """Start with ``live`` as the good snapshot; ``ages`` are the completed steps of each of the K members."""
        rows = rows_with_rollback(configs)
        device = next(iter(live.values())).device
        self._every = configs[0].rollback_every
        self._rows_R = torch.tensor(rows, device=device)
        # On the host, which must know when a snapshot is due.
        self._age_R = torch.tensor([ages[row] for row in rows])
        self._window_RW = torch.zeros(len(rows), WINDOW, dtype=torch.float64, device=device)
        self._num_seen_R = torch.zeros(len(rows), dtype=torch.int64, device=device)
        self._in_a_row_R = torch.zeros(len(rows), dtype=torch.int64, device=device)
        self._is_pending_R = torch.zeros(len(rows), dtype=torch.bool, device=device)
        self._good = self._snapshot(live, torch.arange(len(rows), device=device))
        self._pending = {name: torch.zeros_like(value) for name, value in self._good.items()}

    def after_step(self, loss_K: torch.Tensor, is_alive_K: torch.Tensor, live: Live) -> list[int]:
        """Add the losses of a step and which members are alive after it; return the rows that rolled back."""
        loss_R = loss_K[self._rows_R].double()
        # Members with a non-finite loss or gradient are no longer alive.
        is_spike_R = ~is_alive_K[self._rows_R] | is_above_window(loss_R, self._window_RW, self._num_seen_R)
        self._is_pending_R &= ~is_spike_R
        self._window_RW.scatter_(1, (self._num_seen_R % WINDOW)[:, None], loss_R[:, None])
        self._num_seen_R += 1
        back = (is_spike_R & (self._in_a_row_R < MOST_IN_A_ROW)).nonzero()[:, 0]
        if len(back):
            self._restore(live, back)
            self._in_a_row_R[back] += 1
        self._age_R += 1
        due = (self._age_R % self._every == 0).nonzero()[:, 0]
        if len(due):
            self._take(live, due.to(loss_R.device))
        return self._rows_R[back].tolist()

    def hand_over(self, successor: Rollback, sources: Sequence[int]) -> None:
        """Pass the state of continuing members to ``successor``, which was started on the current pack.

        ``sources`` are the rows that its K members had here, -1 for a new one.
        """
        index = {row: r for r, row in enumerate(self._rows_R.tolist())}
        new_rows = successor._rows_R.tolist()
        new = [r for r, row in enumerate(new_rows) if sources[row] in index]
        old = [index[sources[new_rows[r]]] for r in new]
        known = self._tensors()
        for name, value in successor._tensors().items():
            # State that the optimizer does not use yet is missing in snapshots, as in ``live``.
            if name in known:
                value[new] = known[name][old]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return windows and snapshots."""
        return {name: value.clone() for name, value in self._tensors().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from the ``state_dict`` of the same members."""
        for name, value in self._tensors().items():
            value.copy_(state[name])

    def _take(self, live: Live, due: torch.Tensor) -> None:
        """For the ``due`` members, mark the last snapshot as good if no spike followed it, and take a new one."""
        passed = due[self._is_pending_R[due]]
        taken = self._snapshot(live, due)
        for name, value in self._pending.items():
            self._good[name][passed] = value[passed]
            value[due] = taken[name]
        self._in_a_row_R[passed] = 0
        self._is_pending_R[due] = True

    def _snapshot(self, live: Live, which: torch.Tensor) -> dict[str, torch.Tensor]:
        own = {name: value[self._rows_R[which]] for name, value in live.items()}
        return {**own, "window": self._window_RW[which], "num_seen": self._num_seen_R[which]}

    def _restore(self, live: Live, which: torch.Tensor) -> None:
        for name, value in live.items():
            value[self._rows_R[which]] = self._good[name][which]
        self._window_RW[which] = self._good["window"][which]
        self._num_seen_R[which] = self._good["num_seen"][which]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the whole state, (R, ...) each."""
        return {
            "age": self._age_R,
            "window": self._window_RW,
            "num_seen": self._num_seen_R,
            "in_a_row": self._in_a_row_R,
            "is_pending": self._is_pending_R,
            **{f"good.{name}": value for name, value in self._good.items()},
            **{f"pending.{name}": value for name, value in self._pending.items()},
        }


def begin_rollback(configs: Sequence[TrainingConfig], ages: Sequence[int], live: Live) -> Rollback | None:
    """Return the rollback state of a pack, or None if no member has rollback."""
    return Rollback(configs, ages, live) if rows_with_rollback(configs) else None


def rows_with_rollback(configs: Sequence[TrainingConfig]) -> list[int]:
    """Return the rows of the members with rollback."""
    return [row for row, config in enumerate(configs) if config.rollback is not None]


def is_above_window(loss_R: torch.Tensor, window_RW: torch.Tensor, num_seen_R: torch.Tensor) -> torch.Tensor:
    """Return whether each loss is a spike relative to the losses before it, (R,); False below ``LEAST_HISTORY`` losses.

    A window holds the last of ``num_seen_R`` losses, in any order; entries not yet written do not count.
    """
    num_held_R1 = num_seen_R.clamp(max=WINDOW)[:, None]
    is_held_RW = torch.arange(WINDOW, device=loss_R.device) < num_held_R1
    mean_R1 = window_RW.masked_fill(~is_held_RW, 0.0).sum(1, keepdim=True) / num_held_R1
    square_RW = (window_RW - mean_R1).square().masked_fill(~is_held_RW, 0.0)
    deviation_R = (square_RW.sum(1) / (num_held_R1[:, 0] - 1)).sqrt()
    return (num_seen_R >= LEAST_HISTORY) & (loss_R - mean_R1[:, 0] > DEVIATIONS * deviation_R)
