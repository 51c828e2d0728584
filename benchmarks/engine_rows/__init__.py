"""Measures a real inference engine: one CSV row for each pair of (engine flags, load).

    python -m benchmarks.engine_rows PLAN.json --out FOLDER [--deadline-s 500]

The plan (JSON or YAML; ``plan.Plan``) names a model, how to launch the engine, and a list of engines, each with its
flags and loads. Each engine is started in a session of its own, waited for (``/health``), warmed up, put under every
load from several client processes, and stopped (SIGTERM to the group, then SIGKILL to the group) until the GPU memory
is back. Each load appends its row to ``rows.csv`` at once.

What is measured: streaming requests to ``/v1/completions`` with random token ids, temperature 0 and ``ignore_eos``;
token counts from the final ``usage``. Closed loops keep N requests in flight; open loops send a Poisson stream and
measure latency from the scheduled arrival. Rates count what falls into the steady-state window after the ramp: the
tokens of a request are spread evenly between its first and its last token. Latencies are those of the requests that
finish (closed) or were scheduled (open) inside the window; the open stream goes on until these are done or the drain
limit is over.

The client is not that of ``autotune.load``: the rows judge the project from outside. GPU columns stay empty without
NVML. Linux only.
"""
