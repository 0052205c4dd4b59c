"""Proof that KV moved from prefill to decode: the engines' own counters before and after a canary, the provenance test, what they mean.

    params      which pages are read, what is expected
    engines     names of metrics as data (`engines.yaml`), with the versions they belong to
    exposition  the text format, read from a hostile page
    fetch       one bounded GET
    reading     a page as meters, and the difference of two
    evidence    what is known of one canary        judge   evidence -> disaggregation yes, no or unknown (pure)
    learn       KV bytes per request, learned      split   where the time to the first token went
    provenance  A's hand-over with prompt B        watch   all of it around one request
"""
