"""From results to a verdict: three proofs (transport, speed, answer) kept apart, pure functions only."""
