"""As PyTorch's mnist: a loss every ten batches, with a counter of samples and the epoch; a test after each epoch.

Adadelta, whose learning rate falls with every epoch. It stops at nothing: NaN is printed to the end.
"""

import argparse

import numpy as np
from toy import Images, Net

parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=14)
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--gamma", type=float, default=0.7)
parser.add_argument("--no-accel", action="store_true")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--log-interval", type=int, default=10)
args = parser.parse_args()

train_set, test_set = Images(1, 9000), Images(2, 1000)
model, lr = Net(args.seed, inputs=64, classes=10), args.lr
squares = [[np.zeros_like(w), np.zeros_like(w)] for w in model.weights]
num_batches = -(-len(train_set.y) // args.batch_size)
for epoch in range(1, args.epochs + 1):
    for batch, (x, y) in enumerate(train_set.batches(100 * args.seed + epoch, args.batch_size)):
        loss, gradients = model.loss(x, y)
        for weight, gradient, (square, change) in zip(model.weights, gradients, squares, strict=True):
            with np.errstate(all="ignore"):
                square += 0.1 * (gradient**2 - square)
                step = gradient * np.sqrt(change + 1e-6) / np.sqrt(square + 1e-6)
                change += 0.1 * (step**2 - change)
                weight -= lr * step
        if batch % args.log_interval == 0:
            done, whole = batch * len(x), len(train_set.y)
            print(f"Train Epoch: {epoch} [{done}/{whole} ({100.0 * batch / num_batches:.0f}%)]\tLoss: {loss:.6f}")
    mean, correct = model.loss(test_set.x, test_set.y, with_gradient=False), model.accuracy(test_set.x, test_set.y)
    print(f"\nTest set: Average loss: {mean:.4f}, Accuracy: {correct}/1000 ({correct / 10:.0f}%)\n")
    lr *= args.gamma
