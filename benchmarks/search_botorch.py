"""The search of another engine: BoTorch, with a look-ahead for the level set of a Bernoulli outcome.

The model is GPyTorch's variational Gaussian process behind a probit link; the next trial is the one from which the
level set is expected to be known best at all cells: Letham, Guan, Tymms, Bakshy and Shvartsman, Look-ahead acquisition
functions for Bernoulli level set estimation (AISTATS 2022), their global mutual information. Needs botorch, which
sweep does not.

Letters of shapes: N trials, C cells, B candidates of a batch, T targets.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskVariationalGP
from botorch.optim import optimize_acqf_discrete
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.utils.probability.bvn import bvn
from botorch.utils.probability.utils import ndtr
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.priors import GammaPrior, LogNormalPrior
from scipy.stats import qmc

from benchmarks.search_arms import Trials, edges_of_means
from benchmarks.search_truths import Truth

Model = SingleTaskVariationalGP

_NUM_FIRST = 12  # trials of a Sobol sequence before the first model, as many as the design of our search
_MOST_STEPS = 200  # of L-BFGS, for the first fit and for the edge
_FEW_STEPS = 20  # for each further trial, whose fit starts from the one before
_NUM_CANDIDATES, _NUM_TARGETS = 256, 128  # cells that are tried next, and at which the level set is to be known
_FIRST_LENGTH, _FIRST_SCALE = 0.3, 9.0  # where the first fit starts
_CLOSE_TO_ONE = 0.9999  # a correlation that stands for a larger one
_INFINITE = 40.0  # standard deviations


class GlobalInformation(AcquisitionFunction):
    """The mutual information of a trial's outcome and on which side of the level the targets are, summed over them.

    A trial at x is stable where f(x) + e > 0 with e standard normal, so that it is stable and target t lies above the
    level is the orthant of a bivariate normal distribution.
    """

    def __init__(self, model: Model, targets_TD: torch.Tensor) -> None:
        super().__init__(model)
        self._targets_TD = targets_TD

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """The value of each of ``X`` (B, 1, D), in nats, (B,)."""
        num = len(X)
        posterior = self.model.posterior(torch.cat([X[:, 0], self._targets_TD]))
        mean, covariance = posterior.mean[:, 0], posterior.distribution.covariance_matrix
        sd = covariance.diagonal().clamp_min(1e-9).sqrt()
        total_B = (1 + sd[:num] ** 2).sqrt()
        z_B, z_T = mean[:num] / total_B, mean[num:] / sd[num:]
        correlation_BT = covariance[:num, num:] / (total_B[:, None] * sd[num:])
        correlation_BT = correlation_BT.clamp(-_CLOSE_TO_ONE, _CLOSE_TO_ONE)
        both_BT = _orthant(correlation_BT, z_B[:, None].expand_as(correlation_BT), z_T.expand_as(correlation_BT))
        stable_B, above_T = ndtr(z_B).clamp(1e-9, 1 - 1e-9), ndtr(z_T)
        if_stable_BT = both_BT / stable_B[:, None]
        if_not_BT = (above_T - both_BT) / (1 - stable_B[:, None])
        left_BT = stable_B[:, None] * _entropy(if_stable_BT) + (1 - stable_B[:, None]) * _entropy(if_not_BT)
        return (_entropy(above_T) - left_BT).sum(dim=1)


def _orthant(correlation: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """P(u < first, v < second) for standard normal u and v that have a correlation."""
    low = torch.full_like(correlation, -_INFINITE)
    return bvn(correlation, low, low, first.clamp(-8, 8), second.clamp(-8, 8))


def _entropy(chance: torch.Tensor) -> torch.Tensor:
    chance = chance.clamp(1e-9, 1 - 1e-9)
    return -chance * chance.log() - (1 - chance) * (1 - chance).log()


def fitted(points_ND: torch.Tensor, stable_N: torch.Tensor, before: Model | None, most_steps: int) -> Model:
    """The model of P(stable), with an inducing point at each cell that was tried, in the order of their first trials.

    It starts from the model ``before``, if there is one. The length scales have BoTorch's own prior. The latent values
    beside a sharp edge are large, so their scale is learned.
    """
    dimensions = points_ND.shape[1]
    prior = LogNormalPrior(math.sqrt(2) + math.log(dimensions) / 2, math.sqrt(3))
    lengths = RBFKernel(ard_num_dims=dimensions, lengthscale_prior=prior)
    lengths.lengthscale = _FIRST_LENGTH
    kernel = ScaleKernel(lengths, outputscale_prior=GammaPrior(2.0, 0.15))
    kernel.outputscale = _FIRST_SCALE
    model = SingleTaskVariationalGP(
        points_ND,
        stable_N[:, None],
        likelihood=BernoulliLikelihood(),
        learn_inducing_points=False,
        covar_module=kernel,
        mean_module=ConstantMean(),
        inducing_points=torch.tensor(list(dict.fromkeys(map(tuple, points_ND.tolist()))), dtype=points_ND.dtype),
    )
    _start_from(model, before)
    loss = VariationalELBO(model.likelihood, model.model, num_data=len(points_ND))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizationWarning)  # the last step was reached
        fit_gpytorch_mll_scipy(loss, options={"maxiter": most_steps})
    return model


def _start_from(model: Model, before: Model | None) -> None:
    """Start from kernel, mean and what is known of the cells that the model before has, and from the prior elsewhere.

    The variational distribution is that of the inducing values times the inverse of their covariance's Cholesky factor,
    in which the prior is a standard normal, and a further cell changes none of the values before it.
    """
    mine = model.model.variational_strategy._variational_distribution
    with torch.no_grad():
        mine.variational_mean.zero_()
        mine.chol_variational_covar.copy_(torch.eye(len(mine.variational_mean)))
        if before is not None:
            model.model.covar_module.load_state_dict(before.model.covar_module.state_dict())
            model.model.mean_module.load_state_dict(before.model.mean_module.state_dict())
            theirs = before.model.variational_strategy._variational_distribution
            num = len(theirs.variational_mean)
            mine.variational_mean[:num] = theirs.variational_mean
            mine.chol_variational_covar[:num, :num] = theirs.chol_variational_covar
    model.model.variational_strategy.variational_params_initialized.fill_(1)


class Engine:
    """Trials of a truth, the model of them, and which cell is next."""

    def __init__(self, truth: Truth, seed: int) -> None:
        self.trials = Trials(truth, seed)
        self._random = np.random.default_rng((seed, 2))
        self._cells_CD = np.array(list(np.ndindex(*truth.sizes)))
        self._points_CD = torch.tensor(self._cells_CD / (np.array(truth.sizes) - 1))
        self._tried_N: list[int] = []
        self._stable_N: list[float] = []
        self._model: Model | None = None
        units = qmc.Sobol(len(truth.sizes), rng=seed).random_base2(math.ceil(math.log2(_NUM_FIRST)))
        first = (units * np.array(truth.sizes)).astype(int)
        self._first = [int(np.ravel_multi_index(cell, truth.sizes)) for cell in first]

    def train_next(self) -> None:
        """Train one more trial, and fit the model to all."""
        num = len(self._tried_N)
        index = self._first[num] if num < _NUM_FIRST else self._best()
        self._tried_N.append(index)
        self._stable_N.append(float(self.trials.train(tuple(map(int, self._cells_CD[index])))))
        if num + 1 >= _NUM_FIRST:
            self._model = self._fitted(_MOST_STEPS if self._model is None else _FEW_STEPS)

    def _fitted(self, most_steps: int) -> Model:
        stable_N = torch.tensor(self._stable_N, dtype=torch.float64)
        return fitted(self._points_CD[self._tried_N], stable_N, self._model, most_steps)

    def _best(self) -> int:
        """The cell, among some at random, whose outcome tells most about some others at random."""
        counts_C = np.bincount(self._tried_N, minlength=len(self._cells_CD))
        candidates = self._random.permutation(np.flatnonzero(counts_C < self.trials.truth.num_seeds))[:_NUM_CANDIDATES]
        targets = self._random.permutation(len(self._cells_CD))[:_NUM_TARGETS]
        information = GlobalInformation(self._model, self._points_CD[targets])
        chosen, _ = optimize_acqf_discrete(information, q=1, choices=self._points_CD[candidates])
        distance_B = (self._points_CD[candidates] - chosen).abs().sum(dim=1)
        return int(candidates[int(distance_B.argmin())])

    def edges(self) -> np.ndarray:
        """The edge of each row by the engine's own model, in cells."""
        model = self._fitted(_MOST_STEPS)
        with torch.no_grad():
            mean_C = model.posterior(self._points_CD).mean[:, 0].numpy()
        return edges_of_means(mean_C.reshape(-1, self.trials.truth.sizes[-1]))
