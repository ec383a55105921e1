"""vLLM flags that the simulated engine records and otherwise ignores, by the number of values they take.

From vLLM 0.32/0.33's engine and server arguments. A flag that is neither here nor understood is refused, as vLLM
would: a manifest with a misspelt flag must fail here too.
"""

from __future__ import annotations

# fmt: off
SWITCHES: frozenset[str] = frozenset(
    {
        "allow-credentials", "async-scheduling", "calculate-kv-scales", "cudagraph-metrics",
        "data-parallel-external-lb", "data-parallel-hybrid-lb", "disable-cascade-attn",
        "disable-chunked-mm-input", "disable-custom-all-reduce", "disable-fastapi-docs",
        "disable-frontend-multiprocessing", "disable-hybrid-kv-cache-manager", "disable-log-requests",
        "disable-log-stats", "disable-nccl-for-dp-synchronization", "disable-sliding-window",
        "disable-uvicorn-access-log", "enable-auto-tool-choice", "enable-chunked-prefill",
        "enable-cumem-allocator", "enable-dbo", "enable-eplb", "enable-expert-parallel",
        "enable-flashinfer-autotune", "enable-force-include-usage", "enable-layerwise-nvtx-tracing",
        "enable-log-deltas", "enable-log-outputs", "enable-log-requests",
        "enable-logging-iteration-details", "enable-lora", "enable-mfu-metrics", "enable-mm-embeds",
        "enable-numa-binding", "enable-offline-docs", "enable-prefix-caching", "enable-prompt-embeds",
        "enable-prompt-tokens-details", "enable-request-id-headers", "enable-return-routed-experts",
        "enable-scale-elastic-ep", "enable-server-load-tracking", "enable-sleep-mode", "enable-ssl-refresh",
        "enable-tokenizer-info-endpoint", "enforce-eager", "exclude-tools-when-tool-choice-none",
        "fully-sharded-loras", "grpc", "headless", "interleave-mm-strings", "kv-cache-metrics",
        "kv-sharing-fast-prefill", "language-model-only", "log-error-stack", "ray-workers-use-nsight",
        "return-tokens-as-token-ids", "show-hidden-metrics", "skip-mm-profiling", "skip-tokenizer-init",
        "tokens-only", "trust-remote-code", "trust-request-chat-template", "use-tqdm-on-load",
    }
)
"""Flags without a value; `--no-FLAG` is taken as well."""

VALUES: frozenset[str] = frozenset(
    {
        "additional-config", "all2all-backend", "allowed-headers", "allowed-local-media-path",
        "allowed-media-domains", "allowed-methods", "allowed-origins", "api-server-count",
        "attention-backend", "attention-config", "chat-template", "chat-template-content-format",
        "code-revision", "collect-detailed-traces", "compilation-config", "config-format", "convert",
        "cp-kv-cache-interleave-size", "cpu-offload-gb", "cpu-offload-params", "cuda-graph-sizes",
        "cudagraph-capture-sizes", "data-parallel-address", "data-parallel-backend", "data-parallel-rank",
        "data-parallel-rpc-port", "data-parallel-size", "data-parallel-size-local",
        "data-parallel-start-rank", "dbo-decode-token-threshold", "dbo-prefill-token-threshold",
        "dcp-kv-cache-interleave-size", "decode-context-parallel-size", "default-chat-template-kwargs",
        "disable-access-log-for-endpoints", "distributed-executor-backend", "download-dir", "dtype",
        "ec-transfer-config", "eplb-config", "expert-placement-strategy", "gdn-prefill-backend",
        "generation-config", "guided-decoding-backend", "h11-max-header-count",
        "h11-max-incomplete-event-size", "hf-config-path", "hf-overrides", "hf-token",
        "io-processor-plugin", "kernel-config", "kv-cache-dtype", "kv-cache-metrics-sample",
        "kv-events-config", "kv-offloading-backend", "kv-offloading-size", "kv-transfer-config",
        "limit-mm-per-prompt", "load-format", "log-config-file", "logits-processors", "logprobs-mode",
        "long-prefill-token-threshold", "lora-dtype", "lora-modules", "mamba-block-size",
        "mamba-cache-dtype", "mamba-cache-mode", "mamba-ssm-cache-dtype", "master-addr", "master-port",
        "max-cpu-loras", "max-cudagraph-capture-size", "max-log-len", "max-logprobs",
        "max-long-partial-prefills", "max-lora-rank", "max-loras", "max-num-partial-prefills",
        "max-num-queued-reqs", "max-num-queued-tokens", "max-parallel-loading-workers",
        "max-seq-len-to-capture", "media-io-kwargs", "middleware", "mm-encoder-attn-backend",
        "mm-encoder-tp-mode", "mm-processor-cache-gb", "mm-processor-cache-type", "mm-processor-kwargs",
        "mm-shm-cache-max-object-size-mb", "model-impl", "model-loader-extra-config", "moe-backend",
        "nnodes", "node-rank", "num-redundant-experts", "optimization-level", "otlp-traces-endpoint",
        "override-attention-dtype", "override-generation-config", "override-pooler-config",
        "per-request-spec-decode-metrics", "performance-mode", "pipeline-parallel-size", "pooler-config",
        "preemption-mode", "prefill-context-parallel-size", "prefix-caching-hash-algo", "profiler-config",
        "quantization", "reasoning-config", "reasoning-parser", "reasoning-parser-plugin",
        "renderer-num-workers", "response-role", "revision", "root-path", "rope-scaling", "rope-theta",
        "runner", "scheduler-cls", "scheduler-reserve-full-isl", "scheduling-policy",
        "show-hidden-metrics-for-version", "ssl-ca-certs", "ssl-cert-reqs", "ssl-certfile", "ssl-ciphers",
        "ssl-keyfile", "stream-interval", "structured-outputs-config", "swap-space", "task",
        "tensor-parallel-size", "tokenizer", "tokenizer-mode", "tokenizer-revision", "tool-call-parser",
        "tool-parser-plugin", "tool-server", "ubatch-size", "uds", "uvicorn-log-level",
        "video-pruning-rate", "weight-transfer-config", "worker-cls", "worker-extension-cls",
    }
)
"""Flags with one value."""

LISTS: frozenset[str] = frozenset(
    {
        "collect-detailed-traces", "cuda-graph-sizes", "cudagraph-capture-sizes",
        "kv-cache-dtype-skip-layers", "logits-processors", "lora-modules", "middleware",
    }
)
"""Flags with one value or more."""

# fmt: on

ALIASES: dict[str, str] = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-asc": "--api-server-count",
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-O": "--optimization-level",
}
"""Short forms of the flags above."""
