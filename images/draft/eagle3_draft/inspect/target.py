"""The facts of a target: what its config.json and the headers of its weights say."""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eagle3_api.checkpoints import Target
from eagle3_api.checkpoints.safetensors import Header, HeaderError, read_header
from eagle3_api.checkpoints.target import language_config
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, SamplingDefaults, StageName
from eagle3_api.rates import active_parameters
from eagle3_api.sglang import (
    KNOWN_TARGETS,
    UnsupportedLayersError,
    Version,
    served_dtype,
    supports_target,
    why_unsupported,
)
from eagle3_api.sglang import capture_ids as sglang_ids
from eagle3_draft.data.tokenizer_files import digest_lines
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest
from eagle3_draft.storage import artifacts
from eagle3_draft.target_files import INDEX, find_vocabulary

_TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class TargetFacts:
    """A target, as far as one can see it without loading it.

    Attributes:
        architecture: the first of config.json.
        num_layers, hidden_size, vocabulary_size: of the language model.
        dtype: that SGLang runs it in, as torch says it (``bfloat16``).
        weights_dtype: of most of its weights, where they are in one of floating point.
        weight_bytes: of all its safetensors files.
        active_parameters: that one token meets; None where the configuration does not tell.
        context_length: what its positions reach, if the configuration says.
        digest: config.json, each weight file's header, size and time, and the tokenizer's files; of what came from a hub,
            all its files.
        own_code: config.json names Python code of its own.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    dtype: str
    weights_dtype: str | None
    weight_bytes: int
    active_parameters: int | None
    context_length: int | None
    digest: str
    own_code: bool

    @property
    def of_draft(self) -> Target:
        """What the rules for drafts need to know of it."""
        return Target(self.architecture, self.num_layers, self.hidden_size, self.vocabulary_size, self.context_length)

    def capture_ids(self, layers: Sequence[int], version: Version) -> list[int]:
        """Some of its layers as this SGLang calls them.

        Raises:
            StageError: it cannot capture them (LayerConvention).
        """
        try:
            return sglang_ids(list(layers), self.architecture, self.num_layers, version)
        except UnsupportedLayersError as error:
            raise StageError(
                ExitCode.BAD_CONFIGURATION, Reason.LAYER_CONVENTION, f"draft.auxiliaryLayers: {error}"
            ) from None


def target_facts(folder: Path, arguments: Sequence[str] = ()) -> TargetFacts:
    """Look at the target in a folder.

    Args:
        folder: of the target.
        arguments: that it is served with.

    Raises:
        StageError: it is not there, incomplete or broken (TargetUnreadable), or of an architecture whose layers the
            operator does not know how to name, or with an embedding or head that is quantized (TargetUnsupported).
    """
    config = _config(folder)
    architecture = next(iter(config.get("architectures") or []), None)
    if not isinstance(architecture, str):
        raise _unreadable(f"{folder / 'config.json'} names no architecture")
    if not supports_target(architecture):
        known = ", ".join(sorted(KNOWN_TARGETS))
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNSUPPORTED,
            f"target.model: {why_unsupported(architecture)}. Drafts can be had for {known}",
        )
    headers = _weights(folder)
    language = language_config(config)
    sizes = {field: _number(folder, language, field) for field in ("num_hidden_layers", "hidden_size", "vocab_size")}
    find_vocabulary(folder, config)
    return TargetFacts(
        architecture=architecture,
        num_layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        vocabulary_size=sizes["vocab_size"],
        dtype=served_dtype(config, arguments),
        weights_dtype=_weights_dtype(headers),
        weight_bytes=sum(header.size for header in headers),
        active_parameters=_active_parameters(language),
        context_length=_positions(language),
        digest=_digest(folder, headers),
        own_code="auto_map" in config,
    )


def target_digest(folder: Path) -> str:
    """The digest of the target in a folder, to compare with what Inspect saw.

    Raises:
        StageError: the target is not there, incomplete or broken (TargetUnreadable).
    """
    return _digest(folder, _weights(folder))


def context_length(folder: Path) -> int | None:
    """What the positions of the target in a folder reach, if its configuration says.

    Raises:
        StageError: there is no such target (TargetUnreadable).
    """
    return _positions(read_language(folder))


def read_language(folder: Path) -> dict[str, Any]:
    """The configuration of the language model of the target in a folder.

    Raises:
        StageError: there is no such target (TargetUnreadable).
    """
    return language_config(_config(folder))


def longest_context(folder: Path) -> int | None:
    """The longest context that SGLang lets the target in a folder be served with, or more: it multiplies positions by some factors of
    their scaling (``get_context_length`` in its ``utils/hf_transformers``), and here by any.

    Raises:
        StageError: there is no such target (TargetUnreadable).
    """
    language = read_language(folder)
    positions = _positions(language)
    scaling = language.get("rope_scaling") or language.get("rope_parameters")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    return positions and int(positions * max(1, factor if isinstance(factor, int | float) else 1))


def end_tokens(folder: Path) -> list[int]:
    """The tokens with which the target's configuration says that it ends a text, in order; often more than one.

    Raises:
        StageError: there is no such target (TargetUnreadable).
    """
    said = [language_config(_config(folder)).get("eos_token_id")]
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        said.append(json.loads((folder / "generation_config.json").read_bytes()).get("eos_token_id"))
    return sorted(
        {token for ids in said for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int)}
    )


def sampling_defaults(folder: Path, temperature: float) -> SamplingDefaults | None:
    """How the target's ``generation_config.json`` has its tokens drawn, in what the object has no word for.

    Args:
        folder: of the target.
        temperature: at which it is to answer. At 0 nothing is drawn, but tokens that were said are made less likely all the same.
    """
    names = SamplingDefaults.model_fields if temperature else ("repetition_penalty",)
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):
        said = json.loads((folder / "generation_config.json").read_bytes())
        does = {name: value for name in names if (value := said.get(name) or 0) > 0}
        if does.get("repetition_penalty") == 1:
            del does["repetition_penalty"]
        return SamplingDefaults(**does) if does else None
    return None


def hidden_size(folder: Path) -> int:
    """The width of the target's states.

    Raises:
        StageError: there is no such target, or its configuration does not say (TargetUnreadable).
    """
    return _number(folder, language_config(_config(folder)), "hidden_size")


def _active_parameters(language: dict[str, Any]) -> int | None:
    """Nothing depends on it but an estimate: a configuration that does not tell is a good one."""
    with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return max(0, active_parameters(language)) or None
    return None


def _positions(language: dict[str, Any]) -> int | None:
    positions = language.get("max_position_embeddings")
    return positions if isinstance(positions, int) and positions > 0 else None


def _digest(folder: Path, headers: list[Header]) -> str:
    if artifacts.is_of(folder, StageName.FETCH):  # fetched from a hub: what its files are was checked when they came
        lines = [f"{file.path} {file.sha256}" for file in artifacts.read(folder).files]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    lines = [f"config.json {file_digest(folder / 'config.json')}"]
    lines += [f"{header.path.name} {header.digest} {header.size} {header.modified}" for header in headers]
    lines += digest_lines(folder)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise _unreadable(f"{folder} is not a folder of this pod; is its volume in placement.volumes?")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _unreadable(f"{folder} has no config.json, so it is not a checkpoint of a model") from None
    except OSError as error:
        raise _unreadable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise _unreadable(f"{path} is not a JSON object")
    return config


def _weights(folder: Path) -> list[Header]:
    """The headers of the weight files, in order of their names; all that the index names must be there."""
    found = {path.name: path for path in folder.glob("*.safetensors")}
    if missing := sorted(_indexed(folder) - found.keys()):
        raise _unreadable(
            f"{folder} lacks {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}, which its index names"
        )
    if not found:
        raise _unreadable(f"{folder} holds no weights in *.safetensors")
    try:
        return [read_header(found[name]) for name in sorted(found)]
    except (HeaderError, OSError) as error:
        raise _unreadable(str(error)) from None


def _indexed(folder: Path) -> set[str]:
    try:
        names = json.loads((folder / INDEX).read_bytes())["weight_map"].values()
        return {str(name) for name in names}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(f"{folder / INDEX} is broken: {error!r}") from None


def _number(folder: Path, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise _unreadable(f"{folder / 'config.json'}: {field} is {value!r}, not a positive number")
    return value


def _weights_dtype(headers: list[Header]) -> str | None:
    elements: Counter[str] = Counter()
    for header in headers:
        for tensor in header.tensors.values():
            elements[tensor.dtype] += prod(tensor.shape)
    return next((_TORCH_NAMES[dtype] for dtype, _ in elements.most_common() if dtype in _TORCH_NAMES), None)


def _unreadable(message: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, f"target.model: {message}")
