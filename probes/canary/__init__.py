"""The canary: one streamed request to an OpenAI-compatible endpoint, timed by the kernel.

Definitions. The zero of every time is the write of the request on an open connection.

* `ttfb`: first byte of the answer (some engines send the head long before they have a token).
* `ttft`: first token event of any kind: content, reasoning, tool call, or token ids without text. Role, usage and empty events never count.
* `ttfo`: first token event that is not reasoning.
* `e2e`: last token event. `stream_close`: the end mark `[DONE]`, or the end of the body where there is none.
* `tpot`: (last - first) / (N - n_first), N tokens in all by the server's usage, n_first of them in the first delivery.
* `itl`: the gap between two deliveries divided by the tokens of the second, once per token. `max_gap`: the longest gap, undivided.

A delivery is what one HTTP chunk brings: its sender had all of it before it sent the first byte. Deliveries that share one read of the
socket keep the arrival time of the last only: the earlier ones are unresolved and take part in no gap. If the first delivery is one of
them, the request is disturbed. The last token often shares its read with the end of the stream: its time is then the begin of that read
(`probes.canary.wake`), good enough for `e2e`, `tpot` and `max_gap`, and its gap is left out of `itl`.
"""
