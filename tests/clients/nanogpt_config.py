# train a miniature model, good for debugging
out_dir = "out-small"
eval_interval = 50  # keep frequent because we'll overfit
log_interval = 1
always_save_checkpoint = False
learning_rate = 1e-3  # with baby networks can afford to go a bit higher
max_iters = 5000
warmup_iters = 100  # not super necessary potentially
