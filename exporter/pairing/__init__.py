"""Canaries and the engine pods behind them: pairs that are due, what a request is told of its pods, what is learned of all answers.

    ratios     PD over baseline from interleaved samples        pods      what is known of each engine pod by its visits
    requests   the parameters a run gets from what was found    target    one canary target with its pods
    pairing    all targets, between discovery and control loop
"""

from exporter.pairing.pairing import Pairing

__all__ = ["Pairing"]
