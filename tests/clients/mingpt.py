"""As minGPT's projects: nested settings (--trainer.learning_rate=...), printed as a tree, and no end without max_iters.

A loss every ten iterations, which nothing changes; scores of a test every 500.
"""

import sys
import time
from ast import literal_eval

import numpy as np
from toy import Adam, Net, Text, clipped

config = {
    "system": {"seed": 3407, "work_dir": "./out/adder"},
    "data": {"ndigit": 2},
    "model": {"model_type": "gpt-nano", "n_layer": None, "embd_pdrop": 0.1},
    "trainer": {"num_workers": 4, "max_iters": None, "batch_size": 64, "learning_rate": 5e-4, "grad_norm_clip": 1.0},
}
for argument in sys.argv[1:]:
    key, value = argument.split("=")
    section, key = key.removeprefix("--").split(".")
    assert key in config[section]
    print(f"command line overwriting config attribute {section}.{key} with {literal_eval(value)}")
    config[section][key] = literal_eval(value)
for section, values in config.items():
    print(f"{section}:")
    print("".join(f"    {name}: {value}\n" for name, value in values.items()), end="")
print()
print("number of parameters: 0.09M")
print("running on device cpu")

trainer, seed = config["trainer"], config["system"]["seed"]
model, text, draw = Net(seed), Text(), np.random.default_rng(seed)
optimizer = Adam(model.weights)
iter_num, iter_time, iter_dt = 0, time.time(), 0.0
while True:
    loss, gradients = model.loss(*text.batch(draw, trainer["batch_size"]))
    optimizer.step(clipped(gradients, trainer["grad_norm_clip"])[0], trainer["learning_rate"])
    if iter_num % 10 == 0:
        print(f"iter_dt {iter_dt * 1000:.2f}ms; iter {iter_num}: train loss {loss:.5f}")
    if iter_num % 500 == 0:
        for split in ("train", "test"):
            print("GPT claims that 42 + 17 = 60 but gt is 59")
            correct = model.accuracy(*text.batch(draw, 500))
            print(f"{split} final score: {correct}/500 = {correct / 5:.2f}% correct")
    iter_num += 1
    iter_dt, iter_time = time.time() - iter_time, time.time()
    if trainer["max_iters"] is not None and iter_num >= trainer["max_iters"]:
        break
