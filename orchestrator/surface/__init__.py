"""The surface of P(stable) that is fitted to outcomes of scattered cells."""
