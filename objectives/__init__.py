"""What a sweep trains: objectives and their models, optimizers, schedules and data.

Nothing here imports the orchestrator, Ray or MLflow. ``base`` does not import torch, so planning a sweep and reading
``--help`` are instant.
"""
