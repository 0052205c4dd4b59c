"""Who is measured next, with whom and why not: rounds, gates, budget and the journal. Pure logic; clocks and stores are passed in."""
