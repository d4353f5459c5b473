"""As PyTorch's word_language_model: a mean loss every 200 batches, counted anew in each epoch, and its perplexity.

Plain steps along a gradient clipped at 0.25. `math.exp` of a loss above 709 ends it. It saves the best model and loads
it in the end.
"""

import argparse
import math
import pickle
import time

import numpy as np
from toy import Net, Text, clipped

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="./data/wikitext-2")
parser.add_argument("--lr", type=float, default=20, help="initial learning rate")
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--batch_size", type=int, default=20)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--log-interval", type=int, default=200)
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()

print("Using device:", "cpu")
text, model, draw = Text(), Net(args.seed), np.random.default_rng(args.seed)
num_batches, lr, best = 450, args.lr, None


def train(epoch):
    total, began = 0.0, time.time()
    for batch in range(num_batches):
        loss, gradients = model.loss(*text.batch(draw, args.batch_size))
        for weight, gradient in zip(model.weights, clipped(gradients, args.clip)[0], strict=True):
            weight -= lr * gradient
        total += loss
        if batch % args.log_interval == 0 and batch > 0:
            mean, ms = total / args.log_interval, (time.time() - began) * 1000 / args.log_interval
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{num_batches:5d} batches | lr {lr:02.2f} | ms/batch {ms:5.2f} | "
                f"loss {mean:5.2f} | ppl {math.exp(mean):8.2f}"
            )
            total, began = 0.0, time.time()


for epoch in range(1, args.epochs + 1):
    began = time.time()
    train(epoch)
    valid = model.loss(*text.batch(np.random.default_rng(7), 500), with_gradient=False)
    print("-" * 89)
    print(
        f"| end of epoch {epoch:3d} | time: {time.time() - began:5.2f}s | valid loss {valid:5.2f} | "
        f"valid ppl {math.exp(valid):8.2f}"
    )
    print("-" * 89)
    if not best or valid < best:
        with open(args.save, "wb") as file:
            pickle.dump(model.weights, file)
        best = valid
    else:
        lr /= 4.0
with open(args.save, "rb") as file:
    model.weights = pickle.load(file)
test = model.loss(*text.batch(np.random.default_rng(8), 500), with_gradient=False)
print("=" * 89)
print(f"| End of training | test loss {test:5.2f} | test ppl {math.exp(test):8.2f}")
print("=" * 89)
