"""Which engine pods serve prefill and decode, what they are configured for, and which pair is visited next.

    model       one engine pod          configured  connector, backend and protocol from its arguments and environment
    reduce      a pod of the cluster    kubernetes, ray, static: the sources
    addresses   where requests may go   visits      disjoint pairs within `pod_interval`     findings  what is wrong before any request
"""
