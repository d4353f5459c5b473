"""Training logs of any origin, whole files or lines as they come: steps, losses and gradient norms."""
