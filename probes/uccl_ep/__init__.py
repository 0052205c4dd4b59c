"""MoE dispatch and combine with UCCL-EP: a short driver of our own, the upstream bench, and the parsers of its output."""

