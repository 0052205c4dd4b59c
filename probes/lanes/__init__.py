"""Lanes: one process per GPU below a probe, told and heard over a socket pair, in step with the lanes of all other workers of the run."""
