"""Flags of a server: whose they are, what they say, and which of them change what the target computes."""

from collections.abc import Sequence
from itertools import pairwise

#: Flags that the operator renders itself (``--speculative-*`` besides), and those that would change what it renders.
OWNED_FLAGS = (
    "--model-path",
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tp",
    "--tp-size",
    "--tensor-parallel-size",
    "--trust-remote-code",
    "--context-length",
    "--max-running-requests",
    "--enable-metrics",
    "--extra-metric-labels",
    "--decode-log-interval",
    "--skip-server-warmup",
    "--config",
    "--chat-template",
    "--hf-chat-template-name",
    "--default-chat-template-kwargs",
    "--tokenizer-path",
)

#: Flags by which a server would answer neither health checks nor probe: it is asked by plain HTTP and without a key.
HIDING_FLAGS = (
    "--api-key",
    "--admin-api-key",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--ssl-ca-certs",
    "--grpc-mode",
    "--smg-grpc-mode",
)

#: What is out of scope, as flags.
UNSUPPORTED_FLAGS = (
    "--nnodes",
    "--node-rank",
    "--dist-init-addr",
    "--nccl-init-addr",
    "--disaggregation-mode",
    "--enable-dp-attention",
    "--dp",
    "--dp-size",
    "--data-parallel-size",
    "--pp",
    "--pp-size",
    "--pipeline-parallel-size",
)

#: SGLang sets what it says in the draft's configuration, too, and leaves out what stands beside it there.
OVERRIDE_FLAG = "--json-model-override-args"

#: Flags of a server that change what the target computes, and not only in what order it rounds: types, quantization, other
#: weights, overrides of the configuration, attention that looks at a part. Attention and matrix backends compute the same.
NUMERIC_FLAGS = frozenset(
    {
        "--custom-weight-loader",
        "--deepep-dispatcher-output-dtype",
        "--ds-channel-config-path",
        "--ds-heavy-channel-num",
        "--ds-heavy-channel-type",
        "--ds-heavy-token-num",
        "--ds-sparse-decode-threshold",
        "--dtype",
        "--enable-deepseek-v4-fp4-indexer",
        "--enable-double-sparsity",
        "--enable-fp32-lm-head",
        "--enable-hisparse",
        "--enable-int8-mamba-checkpoint",
        "--enable-mamba-cache-stochastic-rounding",
        "--enable-quant-communications",
        "--enable-w4a4-mxfp4-megamoe",
        "--flashinfer-mxfp4-moe-precision",
        "--hisparse-config",
        "--json-model-override-args",
        "--kt-max-deferred-experts-per-token",
        "--kt-method",
        "--kt-num-gpu-experts",
        "--kt-weight-path",
        "--kv-cache-dtype",
        "--load-format",
        "--mamba-ssm-dtype",
        "--model-impl",
        "--model-loader-extra-config",
        "--modelopt-checkpoint-restore-path",
        "--modelopt-quant",
        "--prefill-kv-cache-dequant-dtype",
        "--quantization",
        "--quantization-param-path",
        "--quantize-and-serve",
        "--revision",
        "--rl-on-policy-target",
        "--rl-quant-profile",
        "--sampling-defaults",
        "--torchao-config",
        "--triton-attention-reduce-in-fp32",
    }
)

#: One of them by which a server does not follow the target's generation_config.json.
IGNORES_DEFAULTS = "--sampling-defaults openai"

#: What these flags say where they leave the choice to the checkpoint, as they do where they are not given.
_UNSAID = "auto"


def flag_values(arguments: Sequence[str], flag: str) -> list[str]:
    """What a command line gives a flag, as ``--flag value`` or ``--flag=value``, abbreviated or not; empty where it is not given."""
    joined = [value for word in arguments for name, sign, value in [word.partition("=")] if sign and _means(name, flag)]
    return joined + [value for word, value in pairwise(arguments) if _means(word, flag)]


def numeric_arguments(arguments: Sequence[str]) -> list[str]:
    """Those of a server's flags that change what the target computes, in one spelling and order; none at their default.

    Args:
        arguments: of the server, as ``--flag value`` or ``--flag=value``; of a flag that is repeated the last holds.
    """
    said: dict[str, list[str]] = {}
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            name, joined, value = word.partition("=")
            flag = _whole(name)
            said[flag] = [value] if joined else []
        elif flag:
            said[flag].append(word)
    return [" ".join([flag, *said[flag]]) for flag in sorted(said) if flag in NUMERIC_FLAGS and said[flag] != [_UNSAID]]


def _whole(name: str) -> str:
    """The numeric flag that a name stands for, or the name."""
    meant = [flag for flag in NUMERIC_FLAGS if _means(name, flag)]
    return name if name in NUMERIC_FLAGS or len(meant) != 1 else meant[0]


def _means(name: str, flag: str) -> bool:
    """Whether a command line's name is a flag's or an abbreviation of it: argparse, SGLang's parser, takes either.

    No flag of SGLang that begins one of those asked for here is another one, and what abbreviates two argparse refuses.
    """
    return len(name) > len("--") and flag.startswith(name)
