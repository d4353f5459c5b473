"""Training logs of any origin, as whole files or as lines arrive: steps, losses and gradient norms."""
