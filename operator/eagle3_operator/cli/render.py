"""The command line of an object's servers, and why each flag is there."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eagle3_api.jobs import Facts, Fetched, FetchResult
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_operator.cli.files import UsageError, no_config, read_config, read_document, spec_of
from eagle3_operator.cli.table import grid
from eagle3_operator.decide.stages import sglang_version
from eagle3_operator.manifests.flags import Flag, server_flags

EXAMPLES = """\
before anything is applied:    kubectl eagle3 render -f kimi.yaml --target-config Kimi-K2.5/config.json --explain
of an object in the cluster:   kubectl get e3d kimi-k25 -o yaml | kubectl eagle3 render -f -
"""

#: What stands for the draft's folder while there is none.
NO_DRAFT_YET = "/eagle3/drafts/<namespace>/<name>/convert/<key>"
#: The same of a target's that comes from a hub.
NOT_FETCHED_YET = "/eagle3/models/<namespace>/<name>/fetch/<key>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-f", "--file", required=True, help="the object's YAML; - reads standard input")
    parser.add_argument("--explain", action="store_true", help="a table: each flag with the reason that it is there")
    parser.add_argument("--plain", action="store_true", help="of the revision without a draft")
    parser.add_argument(
        "--target-config", type=Path, help="the target's config.json, for an object that was not inspected yet"
    )


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    document = read_document(given.file)
    spec = spec_of(document, given.file)
    if spec.serve is None:
        raise UsageError(f"{given.file}: the object has no section serve: it trains a draft and serves nothing")
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    facts = _inspected(status) or _read(spec, given.target_config)
    draft = (status.get("artifact") or {}).get("folder", NO_DRAFT_YET)
    flags = server_flags(
        spec,
        facts,
        namespace=metadata.get("namespace", "default"),
        name=metadata.get("name", "unnamed"),
        number=0 if given.plain else 1,
        draft=None if given.plain else draft,
    )
    sys.stdout.write((_explained if given.explain else _command)(flags) + "\n")
    return 0


def _command(flags: Sequence[Flag]) -> str:
    lines = ["python3 -m sglang.launch_server", *(shlex.join(flag.words) for flag in flags)]
    return " \\\n  ".join(lines)


def _explained(flags: Sequence[Flag]) -> str:
    return grid(("FLAG", "WHY"), [(shlex.join(flag.words), flag.why) for flag in flags])


def _inspected(status: dict[str, Any]) -> Facts | None:
    """What Inspect found; None for an object that it did not look at yet."""
    resolved = status.get("resolved")
    return None if resolved is None else Facts.model_validate(resolved)


def _read(spec: Eagle3DraftSpec, given: Path | None) -> Facts:
    """As much as a configuration tells: what is left out changes no flag but the time that collectives may take."""
    path = given or Path(spec.target.model) / "config.json"
    try:
        values, language = read_config(path)
        index = path.with_name("model.safetensors.index.json")
        weights = json.loads(index.read_bytes())["metadata"]["total_size"] if index.exists() else 0
        return Facts(
            architecture=values["architectures"][0],
            num_layers=language["num_hidden_layers"],
            hidden_size=language["hidden_size"],
            vocabulary_size=language["vocab_size"],
            context_length=language["max_position_embeddings"],
            weight_bytes=weights,
            target_dtype="",
            target_digest="",
            auxiliary_layers=[],
            sglang_version=sglang_version(spec),
            layer_convention="",
            capture_ids=[],
            draft_attention=spec.draft.attention,
            fetched=_to_be_fetched(spec),
        )
    except FileNotFoundError:
        raise UsageError(
            f"{path} is not here. Give the target's config.json as --target-config, or render the object as it is in the "
            "cluster: kubectl get e3d NAME -o yaml | kubectl eagle3 render -f -"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ValidationError) as error:
        raise no_config(path, error) from None


def _to_be_fetched(spec: Eagle3DraftSpec) -> FetchResult | None:
    name = spec.target.repository
    if name is None:
        return None
    return FetchResult(target=Fetched(repository=name, commit="", path=NOT_FETCHED_YET, files=0, bytes=0))
