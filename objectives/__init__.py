"""What a sweep trains: objectives, their optimizers, schedules and data.

Nothing here imports the orchestrator, Ray or MLflow. ``base`` is free of torch, so that planning a
sweep and reading ``--help`` are instant.
"""
