"""What the scripts in this folder train: a linear network of two layers on classes, with NumPy.

Its loss is a cross-entropy whose gradient is a product of its weights, so too large a step really diverges.
"""

import numpy as np


class Net:
    def __init__(self, seed, inputs=16, width=16, classes=16):
        draw = np.random.default_rng(seed)
        self.weights = [draw.normal(size=(inputs, width)) / 4, draw.normal(size=(width, classes)) / 4]

    def loss(self, x, y, with_gradient=True):
        with np.errstate(all="ignore"):
            first, second = self.weights
            hidden = x @ first
            logits = hidden @ second
            logits = logits - logits.max(axis=1, keepdims=True)
            log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            loss = float(-log_p[np.arange(len(y)), y].mean())
            if not with_gradient:
                return loss
            error = np.exp(log_p) - np.eye(second.shape[1])[y]
            error /= len(y)
            return loss, [x.T @ (error @ second.T), hidden.T @ error]

    def accuracy(self, x, y):
        return int(((x @ self.weights[0] @ self.weights[1]).argmax(axis=1) == y).sum())


class Images:
    """Noisy copies of ten patterns of 8 x 8, and their labels."""

    def __init__(self, seed, size):
        draw = np.random.default_rng(seed)
        self.y = draw.integers(10, size=size)
        self.x = np.random.default_rng(0).normal(size=(10, 64))[self.y] / 8 + draw.normal(size=(size, 64)) / 2

    def batches(self, seed, size):
        order = np.random.default_rng(seed).permutation(len(self.y))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield self.x[rows], self.y[rows]


class Text:
    """A text of 16 letters; each one makes three of the next ones likely."""

    def __init__(self, size=20_000):
        draw = np.random.default_rng(0)
        table = draw.dirichlet(np.full(16, 0.2), size=16).cumsum(axis=1)
        letters, coins = [0], draw.random(size)
        for coin in coins:
            letters.append(min(15, int(np.searchsorted(table[letters[-1]], coin))))
        self.letters = np.array(letters)

    def batch(self, draw, size):
        at = draw.integers(len(self.letters) - 1, size=size)
        return np.eye(16)[self.letters[at]], self.letters[at + 1]


def clipped(gradients, limit):
    """The gradients, scaled to a norm of at most ``limit``, and their norm before."""
    with np.errstate(all="ignore"):
        norm = float(np.sqrt(sum((g * g).sum() for g in gradients)))
        factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        return [g * factor for g in gradients], norm


class Adam:
    def __init__(self, weights, beta1=0.9, beta2=0.95, eps=1e-8):
        self.weights, self.betas, self.eps = weights, (beta1, beta2), eps
        self.moments = [[np.zeros_like(w), np.zeros_like(w)] for w in weights]
        self.steps = 0

    def step(self, gradients, lr):
        self.steps += 1
        b1, b2 = self.betas
        with np.errstate(all="ignore"):
            for weight, gradient, moments in zip(self.weights, gradients, self.moments, strict=True):
                moments[0] = b1 * moments[0] + (1 - b1) * gradient
                moments[1] = b2 * moments[1] + (1 - b2) * gradient**2
                first, second = moments[0] / (1 - b1**self.steps), moments[1] / (1 - b2**self.steps)
                weight -= lr * first / (np.sqrt(second) + self.eps)
