"""As Haiku's transformer: absl logs a dictionary of floats every 50 steps on standard error, and there is no last step.

Neither how often it logs nor its end nor its seed is a flag. It resumes from the last checkpoint that it finds.
"""

import argparse
import logging
import os
import pickle
import time

import numpy as np
from toy import Adam, Net, Text, clipped

LOG_EVERY, CHECKPOINT_EVERY, MAX_STEPS = 50, 10_000, 10**6
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--learning_rate", type=float, default=2e-4)
parser.add_argument("--grad_clip_value", type=float, default=0.25)
parser.add_argument("--checkpoint_dir", default="/tmp/haiku-transformer")
parser.add_argument("--alsologtostderr", action="store_true")
FLAGS = parser.parse_args()
handler = logging.StreamHandler()
form = "I%(asctime)s.%(msecs)03d000 %(process)d %(filename)s:%(lineno)d] %(message)s"
handler.setFormatter(logging.Formatter(form, "%m%d %H:%M:%S"))
logger = logging.getLogger("absl")
logger.setLevel(logging.INFO)
logger.addHandler(handler)

logger.info("Initializing parameters...")
data, draw, state = Text(), np.random.default_rng(428), {"step": 0, "params": Net(428).weights}
os.makedirs(FLAGS.checkpoint_dir, exist_ok=True)
if found := sorted(os.listdir(FLAGS.checkpoint_dir)):
    logger.info("Loading checkpoint from %s", found[-1])
    with open(os.path.join(FLAGS.checkpoint_dir, found[-1]), "rb") as file:
        state = pickle.load(file)
model = Net(428)
model.weights = state["params"]
optimizer = Adam(model.weights, beta2=0.99)
logger.info("Starting train loop...")
prev_time = time.time()
for step in range(MAX_STEPS):
    if state["step"] % CHECKPOINT_EVERY == 0:
        path = os.path.join(FLAGS.checkpoint_dir, f"checkpoint_{state['step']:07d}.pkl")
        logger.info("Serializing experiment state to %s", path)
        with open(path, "wb") as file:
            pickle.dump(state, file)
    loss, gradients = model.loss(*data.batch(draw, FLAGS.batch_size))
    optimizer.step(clipped(gradients, FLAGS.grad_clip_value)[0], FLAGS.learning_rate)
    metrics = {"step": state["step"], "loss": loss}
    state["step"] += 1
    if step % LOG_EVERY == 0:
        metrics["steps_per_sec"] = LOG_EVERY / (time.time() - prev_time)
        prev_time = time.time()
        logger.info({name: float(value) for name, value in metrics.items()})
