"""As PyTorch's mnist_hogwild: two processes train one model without a lock, and print the same lines with their ids.

One is slower, so that their counters of samples interleave in no order. The test is printed once, in the end.
"""

import argparse
import multiprocessing
import os
import time

import numpy as np
from toy import Images, Net

SHAPES = ((64, 16), (16, 10))


def shared(memory):
    """The weights as views of memory that all processes share."""
    whole = np.frombuffer(memory)
    return [whole[:1024].reshape(SHAPES[0]), whole[1024:].reshape(SHAPES[1])]


def train(rank, args, memory):
    model, data, pid = Net(0, inputs=64, classes=10), Images(1, 6400), os.getpid()
    model.weights = shared(memory)
    velocity = [np.zeros(shape) for shape in SHAPES]
    num_batches = len(data.y) // args.batch_size
    for epoch in range(1, args.epochs + 1):
        for batch, (x, y) in enumerate(data.batches(args.seed + rank + 100 * epoch, args.batch_size)):
            loss, gradients = model.loss(x, y)
            with np.errstate(all="ignore"):
                for weight, gradient, speed in zip(model.weights, gradients, velocity, strict=True):
                    speed *= args.momentum
                    speed += gradient
                    weight -= args.lr * speed
            if batch % args.log_interval == 0:
                done, whole, share = batch * len(x), len(data.y), 100.0 * batch / num_batches
                print(f"{pid}\tTrain Epoch: {epoch} [{done}/{whole} ({share:.0f}%)]\tLoss: {loss:.6f}")
            time.sleep(0.0005 * (1 + rank))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--num-processes", type=int, default=2)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    memory = context.RawArray("d", sum(a * b for a, b in SHAPES))
    for own, start in zip(shared(memory), Net(args.seed, inputs=64, classes=10).weights, strict=True):
        own[:] = start
    processes = [context.Process(target=train, args=(rank, args, memory)) for rank in range(args.num_processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    model, data = Net(0, inputs=64, classes=10), Images(2, 1000)
    model.weights = shared(memory)
    mean, correct = model.loss(data.x, data.y, with_gradient=False), model.accuracy(data.x, data.y)
    print(f"\nTest set: Average loss: {mean:.4f}, Accuracy: {correct}/1000 ({correct / 10:.0f}%)\n")
