"""The command line of an object's servers, and why each flag is there: of the one with the newest draft, or of those asked for."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from eagle3_api.jobs import Facts, Fetched, FetchResult
from eagle3_api.spec import Eagle3DraftSpec, Metadata
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.cli.columns import grid
from eagle3_operator.cli.files import (
    metadata_of,
    no_config,
    read_config,
    read_document,
    spec_of,
    status_of,
)
from eagle3_operator.cli.usage import UsageError
from eagle3_operator.decide.keys import revision_key
from eagle3_operator.decide.stages import sglang_version
from eagle3_operator.manifests.flags import Flag, server_flags
from eagle3_operator.manifests.names import revision_label, revision_name

EXAMPLES = """\
before anything is applied:    kubectl eagle3 render -f kimi.yaml --target-config Kimi-K2.5/config.json --explain
of an object in the cluster:   kubectl get e3d kimi-k25 -o yaml | kubectl eagle3 render -f -
of all its revisions:          kubectl get e3d kimi-k25 -o yaml | kubectl eagle3 render -f - --all
"""

NOT_MADE_YET = "not made yet"

#: What stands for the draft's folder while there is none.
NO_DRAFT_YET = "/eagle3/drafts/<namespace>/<name>/convert/<key>"
#: The same of a target's that comes from a hub.
NOT_FETCHED_YET = "/eagle3/models/<namespace>/<name>/fetch/<key>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-f", "--file", required=True, help="the object's YAML; - reads standard input")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-r", "--revision", type=_number, metavar="rN", help="the flags of this revision")
    which.add_argument(
        "--plain", action="store_true", help="the flags of the revision without a draft, as the object is served now"
    )
    which.add_argument("--all", action="store_true", help="the flags of every revision")
    parser.add_argument("--explain", action="store_true", help="print a table: each flag with the reason for it")
    parser.add_argument(
        "--target-config", type=Path, help="the target's config.json, for an object that has not been inspected yet"
    )


@dataclass(frozen=True)
class Served:
    """A revision, or one that is to come.

    Attributes:
        number: its.
        draft: folder of its draft; None for the plain one.
        state: where it stands, for people.
        current: the object, as it stands in the file, still asks for what it was made from.
    """

    number: int
    draft: str | None
    state: str
    current: bool = True

    @property
    def name(self) -> str:
        """``r<n>``."""
        return revision_label(self.number)

    @property
    def title(self) -> str:
        """One line about it."""
        return f"# {self.name}, {'without a draft' if self.draft is None else self.draft}: {self.state}"


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    document = read_document(given.file)
    spec = spec_of(document, given.file)
    if spec.serve is None:
        raise UsageError(f"{given.file}: the object has no section serve: it trains a draft and serves nothing")
    metadata, status = metadata_of(document, given.file), status_of(document, given.file)
    facts = status.resolved or _read(spec, given.target_config)

    def told(server: Served) -> str:
        if not server.current:
            return f"# {_former(server, metadata)}"
        flags = server_flags(
            spec, facts, namespace=metadata.namespace, name=metadata.name, number=server.number, draft=server.draft
        )
        return _explained(flags) if given.explain else _command(flags)

    plain, draft, *others = _servers(spec, facts, status)
    if given.all:
        servers = sorted((plain, draft, *others), key=lambda server: server.number)
        sys.stdout.write("\n\n".join(f"{server.title}\n{told(server)}" for server in servers) + "\n")
        return 0
    asked = plain if given.plain else draft
    if given.revision is not None:
        asked = _of_number(given.revision, (plain, draft, *others))
        if not asked.current:
            raise UsageError(_former(asked, metadata))
    sys.stdout.write(told(asked) + "\n")
    return 0


def _servers(spec: Eagle3DraftSpec, facts: Facts, status: Eagle3DraftStatus) -> list[Served]:
    """What the object asks to be served, first without a draft and then with the newest one; then all other revisions."""
    artifact = status.artifact
    known = [
        Served(r.number, r.artifact if r.draft else None, r.state, current=r.key == revision_key(spec, facts, r.draft))
        for r in reversed(status.revisions)
    ]
    following = max((server.number for server in known), default=-1) + 1
    plain = next((s for s in known if s.current and s.draft is None), None)
    if plain is None:
        plain, following = Served(following, None, NOT_MADE_YET), following + 1
    folder = artifact.folder if artifact is not None else NO_DRAFT_YET
    draft = next((s for s in known if s.current and s.draft == folder), Served(following, folder, NOT_MADE_YET))
    return [plain, draft, *(server for server in known if server not in (plain, draft))]


def _of_number(number: int, servers: Sequence[Served]) -> Served:
    for server in servers:
        if server.number == number:
            return server
    names = ", ".join(server.name for server in sorted(servers, key=lambda server: server.number))
    raise UsageError(f"the object has no revision {revision_label(number)}; it has, or is about to have, {names}")


def _former(server: Served, metadata: Metadata) -> str:
    return (
        f"{server.name} was made when the object said something else. What it runs stands in its Deployment: kubectl get "
        f"deployment -n {metadata.namespace} {revision_name(metadata.name, server.number)} -o yaml"
    )


def _number(text: str) -> int:
    digits = text.removeprefix("r")
    if not (digits.isascii() and digits.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a revision such as r3")
    return int(digits)


def _command(flags: Sequence[Flag]) -> str:
    lines = ["python3 -m sglang.launch_server", *(shlex.join(flag.words) for flag in flags)]
    return " \\\n  ".join(lines)


def _explained(flags: Sequence[Flag]) -> str:
    return grid(("FLAG", "WHY"), [(shlex.join(flag.words), flag.why) for flag in flags])


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
