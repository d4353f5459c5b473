"""What a sweep trains: objectives with their models and data, optimizers, schedules.

Nothing here imports the orchestrator, Ray or MLflow. ``base`` does not import torch, so planning a sweep and ``--help``
are instant.
"""
