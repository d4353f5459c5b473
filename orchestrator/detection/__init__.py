"""From losses and gradient norms to episodes, verdicts and outcomes."""
