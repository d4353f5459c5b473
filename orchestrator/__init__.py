"""sweep: where in hyperparameter space is training stable, and how far away is the edge?"""

__version__ = "0.1.0"
