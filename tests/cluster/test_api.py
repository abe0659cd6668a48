"""The API as a real API server applies it: what it stores, what it refuses and in which words, what kubectl shows."""

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_api import API_VERSION, GROUP, PLURAL
from eagle3_api.conditions import Reason, Type
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_api.status import Condition, Eagle3DraftStatus, Phase
from eagle3_operator.cli.main import main
from testcluster import AnyCluster, build, wait_for
from testcluster.api import ApiException

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml"))
DEFINITION = ROOT / "helm/eagle3-operator/files/crd.yaml"
README = (ROOT / "README.md").read_text()
MERGE_PATCH = "application/merge-patch+json"
REMOVED: Any = object()
#: Bytes of all annotations of an object together.
ANNOTATIONS_LIMIT = 256 * 1024
LONGEST_NAME = "a" * 40


def minimal(name: str = "draft") -> dict[str, Any]:
    (path,) = (path for path in EXAMPLES if path.stem == "minimal")
    manifest: dict[str, Any] = yaml.safe_load(path.read_text())
    manifest["metadata"]["name"] = name
    return manifest


def edited(manifest: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """A copy with some fields of the spec set by their dotted paths, or REMOVED."""
    made = copy.deepcopy(manifest)
    for path, value in edits.items():
        *parents, last = path.split(".")
        at = made["spec"]
        for parent in parents:
            at = at.setdefault(parent, {})
        if value is REMOVED:
            del at[last]
        else:
            at[last] = value
    return made


def objects(namespace: str, name: str = "", query: str = "") -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}" + (f"/{name}" if name else "") + query


def refusal(api_server: AnyCluster, method: str, path: str, body: Any, content_type: str = "application/json") -> str:
    """The words with which the API server refuses a request."""
    with pytest.raises(ApiException) as refused:
        api_server.request(method, path, body, content_type)
    assert refused.value.status in (400, 422)
    message = yaml.safe_load(str(refused.value.body))["message"]
    assert isinstance(message, str)
    return message


def begin(api_server: AnyCluster, draft: str, *stages: str) -> None:
    """Say of an object that stages of it were begun, as the operator does."""
    made = [{"name": name, "key": "0" * 16, "state": "Running"} for name in stages]
    api_server.request("PATCH", f"{draft}/status", {"status": {"stages": made}}, MERGE_PATCH)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted_and_read_back_as_the_same_spec(
    api_server: AnyCluster, namespace: str, path: Path
) -> None:
    api_server.kubectl("apply", "--namespace", namespace, "--validate=strict", "-f", str(path))
    manifest = yaml.safe_load(path.read_text())
    stored = api_server.request("GET", objects(namespace, manifest["metadata"]["name"]))["spec"]
    assert Eagle3DraftSpec.model_validate(stored) == Eagle3DraftSpec.model_validate(manifest["spec"])


def test_the_definition_leaves_room_for_plain_kubectl_apply(api_server: AnyCluster) -> None:
    """Which keeps the whole of it in an annotation, beside whatever else stands there."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
    annotations = api_server.request("GET", path)["metadata"]["annotations"]
    assert len(annotations["kubectl.kubernetes.io/last-applied-configuration"]) < 0.75 * ANNOTATIONS_LIMIT


def test_defaults_are_stored_so_that_what_is_read_back_tells_the_truth(api_server: AnyCluster, namespace: str) -> None:
    spec = api_server.request("POST", objects(namespace), minimal())["spec"]
    assert spec["serve"]["speculative"] == {"mode": "Fixed", "numSteps": 3, "topK": 1, "numDraftTokens": 4}
    assert spec["serve"]["surge"] == "IfFree"
    assert spec["train"]["learningRate"] == 1e-4
    assert spec["probe"]["minSpeedup"] == 1.05
    assert spec["autoApply"] == "WhenNoOutage"
    assert spec["deletionPolicy"] == "Retain"
    assert spec["data"]["maxLength"] == 2048
    assert "watch" not in spec
    assert "auxiliaryLayers" not in spec["draft"]


def test_one_step_with_sixteen_tokens_is_refused_in_the_words_that_the_readme_shows(
    api_server: AnyCluster, namespace: str
) -> None:
    manifest = edited(minimal("llama-8b"), {"serve.speculative": {"numSteps": 1, "topK": 1, "numDraftTokens": 16}})
    with pytest.raises(RuntimeError) as refused:
        api_server.kubectl("apply", "--namespace", namespace, "-f", "-", stdin=yaml.safe_dump(manifest))
    said = (
        'The Eagle3Draft "llama-8b" is invalid: spec.serve.speculative: Invalid value: "object": with topK 1 SGLang uses '
        "numSteps + 1 draft tokens; numSteps is 1 and numDraftTokens 16. Set numDraftTokens to 2 or numSteps to 15."
    )
    assert str(refused.value).endswith(said)
    assert said in " ".join(README.split())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a tree too small for its tokens": (
        {"serve.speculative": {"numSteps": 2, "topK": 2, "numDraftTokens": 16}},
        (
            "a tree of 2 steps with topK 2 has 6 nodes, fewer than numDraftTokens - 1 = 15; SGLang would crash at the "
            "first request. Lower numDraftTokens to 7 or raise numSteps or topK."
        ),
    ),
    "some of the three numbers, contradicting the defaults of the others": (
        {"serve.speculative": {"numSteps": 5}},
        "numSteps is 5 and numDraftTokens 4. Set numDraftTokens to 6 or numSteps to 3.",
    ),
    "adaptive steps of a tree": (
        {"serve.speculative": {"mode": "Auto", "numSteps": 3, "topK": 2, "numDraftTokens": 8}},
        "mode Auto: SGLang adapts how far it drafts in a chain, up to numSteps: topK must be 1 and numSteps more than 1",
    ),
    "the algorithm that is not EAGLE-3": (
        {"serve.arguments": ["--speculative-algorithm", "EAGLE"]},
        "serve.arguments: this flag is rendered by the operator from the object; set the object's field instead",
    ),
    "an owned flag with its value in one word": (
        {"serve.arguments": ["--tp=8"]},
        "serve.arguments: this flag is rendered by the operator from the object",
    ),
    "an owned flag cut short, as SGLang understands it": (
        {"serve.arguments": ["--model-pat", "/models/another"]},
        "serve.arguments: this flag is rendered by the operator from the object",
    ),
    "a chat template that extraction would not render with": (
        {"serve.arguments": ["--chat-template", "/models/chat.jinja"]},
        "--chat-template and what chooses or completes it: data.chatTemplate",
    ),
    "a change of the target's configuration that would change the draft's too": (
        {"serve.arguments": ["--json-model-override", '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}']},
        "make the change in the config.json of the target instead",
    ),
    "two words in one item": (
        {"serve.arguments": ["--dtype bfloat16"]},
        "serve.arguments: one list item per word: '--dtype' and 'bfloat16' are two items",
    ),
    "attention spread over data-parallel ranks": ({"serve.arguments": ["--enable-dp-attention"]}, "not in scope"),
    "a server over several nodes": ({"serve.arguments": ["--nnodes", "2"]}, "not in scope"),
    "a server over several nodes, cut short": ({"serve.arguments": ["--nnode=2"]}, "not in scope"),
    "a server of several": ({"serve.arguments": ["--dp-size", "2"]}, "for more servers, set serve.replicas"),
    "prefill and decode apart": ({"serve.arguments": ["--disaggregation-mode=prefill"]}, "not in scope"),
    "an image whose version nobody can tell": (
        {"image": "registry.example.com/sglang:latest"},
        "image: SGLang's version cannot be read from the tag; set sglangVersion (0.5.23)",
    ),
    "a version that is none": ({"sglangVersion": "latest"}, "spec.sglangVersion"),
    "neither data nor a checkpoint": (
        {"data": REMOVED},
        "give data to train a draft, or draft.checkpoint to adopt one",
    ),
    "data of two kinds": (
        {"data": {"conversations": "/data/a.jsonl", "prompts": "/data/b.jsonl"}},
        "give exactly one of data.conversations, data.prompts and data.dataset",
    ),
    "data of no kind": (
        {"data": {"maxSamples": 5}},
        "give exactly one of data.conversations, data.prompts and data.dataset",
    ),
    "a target of a hub without a place for it": (
        {"target.model": "meta-llama/Llama-3.1-8B-Instruct"},
        "storage.models: target.model, draft.checkpoint or data.dataset is a repository of a hub, or lies in a bucket (a path begins with /)",
    ),
    "a data set of a hub without a place for it": (
        {"data": {"dataset": {"repository": "acme/talks"}}},
        "say where what is fetched is kept",
    ),
    "a revision of a path": (
        {"target.revision": "main"},
        "target.revision belongs to a repository of a hub: a path on a volume has no revision",
    ),
    "questions that nobody is to answer": (
        {"data": {"prompts": "/data/b.jsonl", "regenerate": {"enabled": False}}},
        "data.prompts have no answers: the target must give them, so regenerate.enabled cannot be false",
    ),
    "a vocabulary for an adopted draft": (
        {"draft": {"checkpoint": "/models/draft", "vocabularySize": 32000}},
        "draft.checkpoint brings its own vocabulary: leave vocabularySize out",
    ),
    "an adopted draft of another architecture": (
        {"draft": {"checkpoint": "/models/draft", "depth": 2}},
        "draft.checkpoint brings its own architecture: leave depth, variant and attention out",
    ),
    "a draft that is adopted and gone on from": (
        {"draft": {"checkpoint": "/models/draft", "initFrom": "/models/draft"}},
        "draft.checkpoint is served as it is, draft.initFrom is trained further: give one of the two",
    ),
    "a draft that is gone on from with another vocabulary": (
        {"draft": {"initFrom": "/models/draft", "vocabularySize": 32000}},
        "draft.initFrom brings its own vocabulary, in the order of its head's rows: leave vocabularySize out",
    ),
    "a draft that is gone on from with another architecture": (
        {"draft": {"initFrom": "/models/draft", "variant": "EAGLE-3.1"}},
        "draft.initFrom brings its own architecture: leave depth, variant and attention out",
    ),
    "a deep draft with latent attention": (
        {"draft": {"attention": "Latent", "depth": 2}},
        "SGLang serves drafts with latent attention of one layer only: set draft.depth to 1, or draft.attention to Heads",
    ),
    "a vocabulary that no kernel likes": ({"draft.vocabularySize": 1000}, "should be a multiple of 64"),
    "layers out of order": (
        {"draft.auxiliaryLayers": [30, 2, 58]},
        "auxiliaryLayers must be strictly increasing: SGLang captures in layer order",
    ),
    "a layer twice": (
        {"draft.auxiliaryLayers": [2, 2, 58]},
        "auxiliaryLayers must be strictly increasing: SGLang captures in layer order",
    ),
    "a layer below the embedding": ({"draft.auxiliaryLayers": [-2, 2]}, "should be greater than or equal to -1"),
    "a watch without a server": (
        {"serve": REMOVED, "watch": {"prometheus": {"name": "default"}}},
        "watch judges a serving revision: it needs serve",
    ),
    "more failures than windows": (
        {"watch": {"prometheus": {"name": "default"}, "failures": {"of": 3, "in": 2}}},
        "failures.of cannot be larger than failures.in",
    ),
    "somebody else's trainer on several nodes": (
        {"train": {"nodes": 2, "trainer": {"image": "specforge", "command": ["train"]}}},
        "trainer: one pod runs it; set nodes to 1",
    ),
    "somebody else's trainer with a draft to begin with": (
        {"train": {"trainer": {"image": "specforge", "command": ["train"]}}, "draft": {"initFrom": "/models/draft"}},
        "train.trainer chooses its own initial weights: leave draft.initFrom out",
    ),
    "copies on each node of one": (
        {"train": {"gpus": 8, "sharding": "Hybrid"}},
        "sharding: Hybrid keeps one copy of the draft on each node, and train.nodes is 1; leave it at Full",
    ),
    "copies cut up among one GPU": (
        {"train": {"nodes": 2, "sharding": "Hybrid"}},
        "sharding: Hybrid cuts a node's copy up among its GPUs, and train.gpus is at most 1; set it to Replicate",
    ),
    "an early stop that comes too late to stop anything": (
        {"train": {"epochs": 4, "earlyStop": {}}},
        "earlyStop could never end this training: it takes more than earlyStop.patience + 1 evaluations",
    ),
    "several nodes with a claim for one": (
        {"train.nodes": 2, "storage": {"features": {"size": "1Gi"}, "drafts": {"claim": "training"}}},
        "set accessMode of both to ReadWriteMany, or nodes to 1",
    ),
    "FP8 without a GPU": (
        {"train": {"gpus": 0, "precision": "fp8"}},
        "precision: fp8 needs GPUs that multiply FP8 (Ada, Hopper or newer), and train.gpus is 0; leave it at bf16",
    ),
    "a server with fewer GPUs than the target needs": (
        {"target.tensorParallelSize": 8, "serve.gpus": 4},
        "serve.gpus: fewer than target.tensorParallelSize",
    ),
    "a variable with two sources": (
        {"placement.env": [{"name": "TOKEN", "value": "x", "secretKeyRef": {"name": "hub", "key": "token"}}]},
        "give either value or secretKeyRef",
    ),
    "a variable without a source": ({"placement.env": [{"name": "TOKEN"}]}, "give either value or secretKeyRef"),
    "a variable twice": (
        {"placement.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        'spec.placement.env[1]: Duplicate value: {"name":"A"}',
    ),
    "a mount over the operator's own": (
        {"placement.volumes": [{"name": "x", "mountPath": "/eagle3", "persistentVolumeClaim": {"claimName": "x"}}]},
        "mountPath: /eagle3 is where the operator mounts its own volumes; choose another path",
    ),
    "a mount below the operator's own, of one stage": (
        {
            "train.placement.volumes": [
                {"name": "x", "mountPath": "/eagle3/drafts", "persistentVolumeClaim": {"claimName": "x"}}
            ]
        },
        "mountPath: /eagle3 is where the operator mounts its own volumes; choose another path",
    ),
    "a mount that is no path": (
        {"placement.volumes": [{"name": "x", "mountPath": "models", "persistentVolumeClaim": {"claimName": "x"}}]},
        "where pods see the volume: a path that begins with /",
    ),
    "two mounts at one path": (
        {
            "placement.volumes": [
                {"name": name, "mountPath": "/models", "persistentVolumeClaim": {"claimName": name}}
                for name in ("a", "b")
            ]
        },
        "volumes: two of them have the same mountPath",
    ),
    "a root that is a claim and a size": (
        {"storage.drafts": {"claim": "training", "size": "1Gi"}},
        "give either claim (yours) or size (a claim made by the operator)",
    ),
    "features in two places": (
        {"storage.features": {"claim": "nvme", "objectStore": {"url": "s3://bucket/team"}}},
        "give one of claim (yours), size (a claim made by the operator) and objectStore",
    ),
    "an object store that is no bucket": (
        {"storage.features": {"objectStore": {"url": "https://bucket"}}},
        "spec.storage.features.objectStore.url",
    ),
    "a root that is nothing": ({"storage.drafts": {}}, "give either claim (yours) or size"),
    "a storage class for a claim of the user's": (
        {"storage.drafts": {"claim": "training", "storageClassName": "fast"}},
        "storageClassName belongs to size, not to a claim of yours",
    ),
    "no storage": ({"storage": REMOVED}, "spec.storage: Required value"),
    "a relative path": ({"target.model": "models/llama/8b"}, "spec.target.model"),
    "a choice that does not exist": (
        {"serve.surge": "Maybe"},
        'spec.serve.surge: Unsupported value: "Maybe": supported values: "IfFree", "Never"',
    ),
    "a duration in words": ({"serve.bakeTime": "ten minutes"}, "spec.serve.bakeTime"),
    "a drift that any fall is": ({"watch": {"driftBand": 0}}, "spec.watch.driftBand"),
    "a window of no length": ({"watch": {"prometheus": {"name": "default"}, "window": "0s"}}, "spec.watch.window"),
    "a window in which a server has counted next to nothing": (
        {"watch": {"window": "9s"}},
        "a window of ten seconds at least is written in hours, minutes and seconds, of five digits at most: 30s",
    ),
    "root inside the pods": ({"placement.runAsUser": 0}, "spec.placement.runAsUser"),
    "a requirement of nodes without values": (
        {
            "placement.affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In"}]}]
                    }
                }
            }
        },
        "affinity: Exists and DoesNotExist take no values, the other operators need them",
    ),
    "a number of nodes' that is two": (
        {
            "serve.placement.affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "preference": {
                                "matchExpressions": [{"key": "memory", "operator": "Gt", "values": ["1", "2"]}]
                            },
                        }
                    ]
                }
            }
        },
        "affinity: Gt and Lt take one value, a whole number",
    ),
    "a queue that is no label": ({"queueName": "Team A"}, "spec.queueName"),
    "a label of the operator's own": (
        {"serve.placement": {"labels": {"eagle3.dev/revision": "r7"}}},
        "labels: those of eagle3.dev and app.kubernetes.io/managed-by are the operator's own",
    ),
    "an annotation of the operator's own": (
        {"placement.annotations": {"eagle3.dev/config": "{}"}},
        "annotations: those of eagle3.dev are the operator's own; choose others",
    ),
    "a label that is a sentence": ({"placement.labels": {"team": "search and ads"}}, "spec.placement.labels.team"),
    "a host path": ({"placement.hostPath": "/"}, 'unknown field "spec.placement.hostPath"'),
    "a privileged pod": ({"placement.privileged": True}, 'unknown field "spec.placement.privileged"'),
    "a repository without its registry": (
        {"publish": {"oci": {"reference": "llm/kimi-draft"}}},
        "reference: name the registry too, in lower case and without https://, as in registry.example.com/llm/kimi-draft",
    ),
    "a draft of a hub that is kept nowhere": (
        {"draft.checkpoint": "acme/draft"},
        "storage.models: target.model, draft.checkpoint or data.dataset is a repository of a hub",
    ),
    "a revision of a draft that is a path": (
        {"draft.checkpoint": "/drafts/a", "draft.revision": "v1"},
        "draft.revision belongs to a repository of a hub, which draft.checkpoint must name: a path or an address has no revision",
    ),
    "a draft in a bucket that was not published there": (
        {"draft.checkpoint": "s3://drafts/kimi"},
        "draft.checkpoint: an address in an object store is one that publish.objectStore made, s3://BUCKET/PREFIX/sha256-...",
    ),
    "a draft that is published nowhere": ({"publish": {}}, "publish: set oci, objectStore or both"),
    "a bucket that is a web page": ({"publish": {"objectStore": {"url": "https://b"}}}, "spec.publish.objectStore.url"),
    "a hook without a command": (
        {"publish": {"oci": {"reference": "r.io/llm/kimi"}, "hook": {"image": "cosign", "command": []}}},
        "spec.publish.hook.command",
    ),
    "a hook with a volume that is not there": (
        {
            "publish": {
                "oci": {"reference": "r.io/llm/kimi"},
                "hook": {"image": "i", "command": ["c"], "volumes": ["ca"]},
            }
        },
        "publish.hook.volumes: each must be the name of a volume in placement.volumes",
    ),
    "adaptive steps of one": (
        {"serve.speculative": {"mode": "Auto", "numSteps": 1, "numDraftTokens": 2}},
        "topK must be 1 and numSteps more than 1",
    ),
    "a tree too small by one token": (
        {"serve.speculative": {"numSteps": 2, "topK": 2, "numDraftTokens": 8}},
        "Lower numDraftTokens to 7",
    ),
    **{
        f"the operator's own flag {flag}": (
            {"serve.arguments": ["--dtype", "bfloat16", f"{flag}=a"]},
            "serve.arguments: this flag is rendered by the operator from the object",
        )
        for flag in (
            *("--model-path", "--model", "--served-model-name", "--host", "--port", "--tp", "--tp-size"),
            *("--tensor-parallel-size", "--trust-remote-code", "--context-length", "--max-running-requests"),
            *("--enable-metrics", "--extra-metric-labels", "--decode-log-interval", "--skip-server-warmup", "--config"),
            *("--speculative-num-steps", "--speculative-draft-model-path"),
            *("--chat-template", "--hf-chat-template-name", "--default-chat-template-kwargs"),
        )
    },
    **{
        f"what nobody could ask anything, {flag}": (
            {"serve.arguments": ["--dtype", "bfloat16", f"{flag}=a"]},
            "serve.arguments: servers are probed, watched and asked for their health by plain HTTP and without a key",
        )
        for flag in ("--api-key", "--api", "--admin-api-key", "--ssl-keyfile", "--ssl-certfile", "--smg-grpc-mode")
    },
    **{
        f"{loads} requests together on a server that decodes 48": (
            {"probe": loads},
            "probe: a server does not decode as many requests together as probe.concurrency or probe.loads says",
        )
        for loads in ({"concurrency": 49}, {"loads": [1, 49]})
    },
    **{
        f"what is out of scope, {flag}": ({"serve.arguments": ["--dtype", "bfloat16", f"{flag}=a"]}, "not in scope")
        for flag in (
            *("--nnodes", "--node-rank", "--dist-init-addr", "--disaggregation-mode", "--enable-dp-attention"),
            *("--pp", "--pp-size", "--pipeline-parallel-size"),
        )
    },
    "an image with a port and no tag": ({"image": "0.5.23.example.com:5000/sglang"}, "image: SGLang's version"),
    "an image whose digest alone looks like a version": (
        {"image": "sglang:latest@sha256:0.5.23"},
        "image: SGLang's version cannot be read from the tag",
    ),
    "an image with two tags": ({"image": "sglang:0.5.23:cu130"}, "image: SGLang's version cannot be read from the tag"),
    "a data set beside conversations": (
        {"data.dataset": {"repository": "acme/talks"}, "storage.models": {"claim": "models"}},
        "give exactly one of data.conversations, data.prompts and data.dataset",
    ),
    "an adopted draft of another variant": (
        {"draft": {"checkpoint": "/models/draft", "variant": "EAGLE-3.1"}},
        "draft.checkpoint brings its own architecture",
    ),
    "an adopted draft of another attention": (
        {"draft": {"checkpoint": "/models/draft", "attention": "Latent"}},
        "draft.checkpoint brings its own architecture",
    ),
    "a draft that is gone on from with another depth": (
        {"draft": {"initFrom": "/models/draft", "depth": 2}},
        "draft.initFrom brings its own architecture",
    ),
    "a draft that is gone on from with another attention": (
        {"draft": {"initFrom": "/models/draft", "attention": "Latent"}},
        "draft.initFrom brings its own architecture",
    ),
    "a revision of a draft that is trained": (
        {"draft.revision": "v1"},
        "draft.revision belongs to a repository of a hub, which draft.checkpoint must name",
    ),
    "a revision of a draft in a bucket": (
        {"draft": {"checkpoint": f"s3://drafts/sha256-{'0' * 64}", "revision": "v1"}, "storage.models": {"claim": "a"}},
        "draft.revision belongs to a repository of a hub, which draft.checkpoint must name",
    ),
    **{
        f"a draft in a bucket at {address}": (
            {"draft.checkpoint": address, "storage.models": {"claim": "models"}},
            "draft.checkpoint: an address in an object store is one that publish.objectStore made",
        )
        for address in (
            *(f"s3://Drafts/sha256-{'0' * 64}", f"s3://drafts//sha256-{'0' * 64}", f"s3://drafts/sha256-{'0' * 63}"),
            *(f"s3://drafts/sha256-{'0' * 65}", f"s3://drafts/sha256-{'0' * 64}/weights", f"s3://sha256-{'0' * 64}"),
        )
    },
    "a server with one GPU less than the target needs": (
        {"target.tensorParallelSize": 8, "serve.gpus": 7},
        "serve.gpus: fewer than target.tensorParallelSize",
    ),
    "several nodes with features on a claim for one": (
        {"train.nodes": 2, "storage": {"features": {"size": "1Gi"}, "drafts": {"claim": "drafts"}}},
        "train.nodes: pods on several nodes write to storage.features and storage.drafts",
    ),
    "several nodes with drafts on a claim for one": (
        {"train.nodes": 2, "storage": {"features": {"claim": "features"}, "drafts": {"size": "1Gi"}}},
        "train.nodes: pods on several nodes write to storage.features and storage.drafts",
    ),
    "no node": ({"train.nodes": 0}, "spec.train.nodes in body should be greater than or equal to 1"),
    "a node too many": ({"train.nodes": 65}, "spec.train.nodes in body should be less than or equal to 64"),
    **{
        f"a mount at {path}": (
            {"placement.volumes": [{"name": "x", "mountPath": path, "persistentVolumeClaim": {"claimName": "x"}}]},
            "volumes: /tmp, /dev/shm and names that begin with eagle3- are the operator's own",
        )
        for path in ("/tmp", "/dev/shm")
    },
    "a volume with a name of the operator's": (
        {
            "placement.volumes": [
                {"name": "eagle3-drafts", "mountPath": "/x", "persistentVolumeClaim": {"claimName": "x"}}
            ]
        },
        "volumes: /tmp, /dev/shm and names that begin with eagle3- are the operator's own",
    ),
    "a volume twice": (
        {
            "placement.volumes": [
                {"name": "a", "mountPath": path, "persistentVolumeClaim": {"claimName": "a"}} for path in ("/a", "/b")
            ]
        },
        'spec.placement.volumes[1]: Duplicate value: {"name":"a"}',
    ),
    "a load twice": ({"probe.loads": [8, 32, 8]}, "spec.probe.loads[2]: Duplicate value: 8"),
    "a variable of a hook twice": (
        {
            "publish": {
                "oci": {"reference": "r.io/llm/kimi"},
                "hook": {
                    "image": "i",
                    "command": ["c"],
                    "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
                },
            }
        },
        'spec.publish.hook.env[1]: Duplicate value: {"name":"A"}',
    ),
    **{
        f"the label {label}": (
            {"placement.labels": {label: "a"}},
            "labels: those of eagle3.dev and app.kubernetes.io/managed-by are the operator's own",
        )
        for label in ("app.kubernetes.io/managed-by", "kueue.x-k8s.io/queue-name", "eagle3.dev/a")
    },
    "features on a claim that is made and in a bucket": (
        {"storage.features": {"size": "1Gi", "objectStore": {"url": "s3://bucket"}}},
        "give one of claim (yours), size (a claim made by the operator) and objectStore",
    ),
    "features on a claim of the user's and one that is made": (
        {"storage.features": {"size": "1Gi", "claim": "nvme"}},
        "give one of claim (yours), size (a claim made by the operator) and objectStore",
    ),
    "features nowhere": ({"storage.features": {}}, "give one of claim (yours), size (a claim made by the operator)"),
    "a storage class for a bucket": (
        {"storage.features": {"objectStore": {"url": "s3://bucket"}, "storageClassName": "fast"}},
        "storageClassName belongs to size, not to a claim of yours or an object store",
    ),
    "a misspelt field": ({"serve.replicaz": 2}, 'unknown field "spec.serve.replicaz"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_object_is_refused_with_a_sentence_that_names_the_field(
    api_server: AnyCluster, namespace: str, case: str
) -> None:
    edits, words = REFUSED[case]
    path = objects(namespace, query="?dryRun=All&fieldValidation=Strict")
    message = refusal(api_server, "POST", path, edited(minimal(), edits))
    assert words in message.replace('Invalid value: "object": ', "Invalid value: ")


def in_a_bucket(prefix: str) -> dict[str, Any]:
    """An adopted draft that was published there."""
    return {"draft.checkpoint": f"s3://drafts{prefix}/sha256-{'0' * 64}", "storage.models": {"claim": "models"}}


#: What stands nearest to the objects that are refused.
ACCEPTED: dict[str, dict[str, Any]] = {
    "an early stop that comes one evaluation before the last": {"train": {"epochs": 5, "earlyStop": {}}},
    "a tree with just enough nodes": {"serve.speculative": {"numSteps": 2, "topK": 2, "numDraftTokens": 7}},
    "adaptive steps of a chain": {"serve.speculative": {"mode": "Auto", "numSteps": 2, "numDraftTokens": 3}},
    "a value that has a space, and one that has a flag's name": {
        "serve.arguments": ["--model-loader-extra-config={'a': 1}", "a --tp b", "--dtype=--tp", "--", "nnodes"]
    },
    "a version behind a registry's port, of a patched image that is pinned": {
        "image": f"registry.example.com:5000/sglang:v0.5.23.post1-cu130@sha256:{'a' * 64}"
    },
    "a version without v": {"image": "lmsysorg/sglang:0.5.23"},
    "an image of no version beside the version": {"image": "sglang", "sglangVersion": "0.5.23"},
    "questions without a word on who answers": {"data": {"prompts": "/data/a.jsonl"}},
    "questions that the target answers": {"data": {"prompts": "/data/a.jsonl", "regenerate": {}}},
    "answers of the data's own": {"data.regenerate": {"enabled": False}},
    "a path to an adopted draft": {"data": REMOVED, "draft.checkpoint": "/models/draft"},
    "a draft of a hub, of one revision": {
        "draft": {"checkpoint": "acme/draft", "revision": "v1"},
        "storage.models": {"claim": "models"},
    },
    "a draft in a bucket": in_a_bucket(""),
    "a draft below folders of a bucket": in_a_bucket("/team/2026.11"),
    "a deep draft with heads": {"draft": {"depth": 2}},
    "a draft with latent attention": {"draft": {"attention": "Latent"}},
    "layers from the embedding on": {"draft.auxiliaryLayers": [-1, 2, 30]},
    "one layer": {"draft.auxiliaryLayers": [2]},
    "a draft that is gone on from": {"draft.initFrom": "/models/draft"},
    "a server with as many GPUs as the target needs": {"target.tensorParallelSize": 8, "serve.gpus": 8},
    "a server with more": {"target.tensorParallelSize": 4, "serve.gpus": 8},
    "a server without a GPU": {"target.tensorParallelSize": 2, "serve.gpus": 0},
    "a target without servers": {"target.tensorParallelSize": 8, "serve": REMOVED},
    "FP8 on a GPU": {"train": {"precision": "fp8"}},
    "somebody else's trainer": {"train": {"trainer": {"image": "specforge", "command": ["train"]}}},
    "a copy on each of two nodes": {
        "train": {"nodes": 2, "gpus": 2, "sharding": "Hybrid"},
        "storage": {name: {"size": "1Gi", "accessMode": "ReadWriteMany"} for name in ("features", "drafts")},
    },
    "several nodes with claims of the user's": {
        "train.nodes": 64,
        "storage": {"features": {"claim": "features"}, "drafts": {"claim": "drafts"}},
    },
    "as many failures as windows": {"watch": {"failures": {"of": 3, "in": 3}}},
    "a mount beside the operator's own": {
        "placement.volumes": [
            {"name": name, "mountPath": path, "persistentVolumeClaim": {"claimName": "x"}}
            for name, path in (("eagle3", "/eagle3x"), ("a", "/tmp/a"), ("b", "/x/eagle3/"), ("my-eagle3", "/dev"))
        ]
    },
    "labels and annotations that are nearly the operator's own": {
        "placement": {"labels": {"my.eagle3.dev/a": "b"}, "annotations": {"my.eagle3.dev/a": "b"}}
    },
    "a draft that is published in a registry alone": {"publish": {"oci": {"reference": "r.io/llm/kimi"}}},
    "a draft that is published in a bucket alone": {"publish": {"objectStore": {"url": "s3://drafts"}}},
    "features in a bucket": {"storage.features": {"objectStore": {"url": "s3://features"}}},
    "features on a claim of the user's": {"storage.features": {"claim": "features"}},
    "a storage class for claims that are made": {
        "storage": {name: {"size": "1Gi", "storageClassName": "fast"} for name in ("features", "drafts")}
    },
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_next_to_what_is_refused_is_accepted(api_server: AnyCluster, namespace: str, case: str) -> None:
    path = objects(namespace, query="?dryRun=All&fieldValidation=Strict")
    api_server.request("POST", path, edited(minimal(), ACCEPTED[case]))


@pytest.mark.parametrize("case", REFUSED)
def test_the_plugin_says_without_a_cluster_what_the_api_server_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """What a field alone may be in words of its own; of a rule the very words."""
    edits, words = REFUSED[case]
    file = tmp_path / "draft.yaml"
    file.write_text(yaml.safe_dump(edited(minimal(), edits)))
    code = main(["estimate", "-f", str(file)])
    said = capsys.readouterr().err
    if words.startswith("unknown field"):
        assert words.replace('unknown field "', "there is no field ").rstrip('"') in said
        return
    assert code == 1
    said_by_field = words.startswith("spec.")
    assert (words.split()[0].rstrip(":") if said_by_field else words) in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (LONGEST_NAME + "a", "metadata.name: at most 40 characters"),
        ("kimi-r1", "metadata.name: must not end in -r<digits>; that is how revisions are named"),
        ("kimi-k2.5", "it must begin with a letter and hold only lower-case letters, digits and '-'"),
        ("2kimi", "it must begin with a letter"),
    ],
)
def test_a_name_from_which_no_other_names_can_be_made_is_refused(
    api_server: AnyCluster, namespace: str, name: str, words: str
) -> None:
    assert words in refusal(api_server, "POST", objects(namespace, query="?dryRun=All"), minimal(name))


@pytest.mark.parametrize("name", [LONGEST_NAME, "kimi-r1x", "a", "r1"])
def test_a_name_that_leaves_room_is_accepted(api_server: AnyCluster, namespace: str, name: str) -> None:
    api_server.request("POST", objects(namespace, query="?dryRun=All"), minimal(name))


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (
            {"serve.bakeTime": "10 min"},
            "a length of time is written in hours, minutes and seconds, of five digits at most: 90s, 10m, 1h30m",
        ),
        ({"serve.startTimeout": "0s"}, "a length of time that is not zero is written in hours"),
        ({"storage.features": {"size": "2 TB"}}, "a quantity is a number and Kubernetes' unit, without a space"),
        ({"target.model": "models"}, "a path as pods see it, which begins with /, or organisation/name of a hub"),
        ({"data.chatTemplate": "{{ messages }}"}, "a path as pods see it, which begins with /"),
        ({"data.conversations": "talks.jsonl"}, "a path as pods see it, which begins with /"),
        ({"data": {"prompts": "talks.jsonl"}}, "a path as pods see it, which begins with /"),
        ({"draft.initFrom": "acme/draft"}, "a path as pods see it, which begins with / and leads into a volume"),
        ({"draft.checkpoint": "draft"}, "or organisation/name of a hub, or s3://BUCKET/PREFIX/sha256-..."),
        ({"draft.checkpoint": "acme/draft/x"}, "or organisation/name of a hub, or s3://BUCKET/PREFIX/sha256-..."),
        ({"storage.drafts": {"size": "2 TB"}}, "a quantity is a number and Kubernetes' unit, without a space"),
        ({"placement.gpuResource": "gpu"}, "what nodes offer, as kubectl describe nodes lists it"),
        ({"sglangVersion": "v0.5.23"}, "a release of SGLang, without v"),
    ],
)
def test_what_is_written_in_another_form_is_refused_in_words_and_not_with_a_pattern(
    api_server: AnyCluster, namespace: str, edits: dict[str, Any], words: str
) -> None:
    message = refusal(api_server, "POST", objects(namespace), edited(minimal(), edits))
    assert words in message
    assert "should match" not in message


@pytest.fixture
def stored(api_server: AnyCluster, namespace: str) -> Iterator[str]:
    """The path of an object that is there."""
    api_server.request("POST", objects(namespace), minimal())
    yield objects(namespace, "draft")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(
            ({"storage": storage}, "Invalid value: spec.storage cannot be changed: finished artifacts lie there")
            for storage in (
                {"features": {"size": None, "claim": "nvme"}},
                {"features": {"size": "3Ti"}},
                {"features": {"size": None, "objectStore": {"url": "s3://features"}}},
                {"drafts": {"size": "30Gi"}},
                {"drafts": {"size": None, "claim": "drafts"}},
            )
        ),
        (
            {"serve": None},
            "spec: Invalid value: serve cannot be removed once it is set: running servers would stop unannounced. Set serve.replicas to 0",
        ),
    ],
)
def test_a_change_that_would_lose_something_is_refused(
    api_server: AnyCluster, stored: str, change: dict[str, Any], words: str
) -> None:
    message = refusal(api_server, "PATCH", stored, {"spec": change}, MERGE_PATCH)
    assert words in message.replace('Invalid value: "object": ', "Invalid value: ")


def test_what_may_change_changes(api_server: AnyCluster, stored: str) -> None:
    change = {"image": "lmsysorg/sglang:v0.5.23", "probe": {"minSpeedup": 1.2}, "suspend": True, "serve": {"gpus": 2}}
    before = api_server.request("GET", stored)
    after = api_server.request("PATCH", stored, {"spec": change}, MERGE_PATCH)
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1


def test_a_place_for_what_comes_from_a_hub_can_be_added_and_then_stays(
    api_server: AnyCluster, namespace: str, stored: str
) -> None:
    change = {"target": {"model": "acme/target", "revision": "v1"}, "storage": {"models": {"claim": "models"}}}
    after = api_server.request("PATCH", stored, {"spec": change}, MERGE_PATCH)
    assert after["spec"]["storage"]["models"]["claim"] == "models"
    begin(api_server, stored, "fetch")
    moved = {"spec": {"storage": {"models": {"claim": "others"}}}}
    assert "storage cannot be changed" in refusal(api_server, "PATCH", stored, moved, MERGE_PATCH)
    assert "storage cannot be changed" in refusal(
        api_server,
        "PATCH",
        stored,
        {"spec": {"target": {"model": "/models/x", "revision": None}, "storage": {"models": None}}},
        MERGE_PATCH,
    )


@pytest.mark.parametrize(
    ("root", "stages", "changes"),
    [
        *(
            (root, stages, changes)
            for root in ("features", "drafts")
            for stages, changes in (
                ([], True),
                (["fetch", "inspect"], True),
                (["fetch", "inspect", "extract"], False),
                (["convert"], False),
            )
        ),
        ("models", [], True),
        ("models", ["inspect"], True),
        ("models", ["fetch"], False),
    ],
)
def test_a_misspelt_claim_can_be_corrected_until_something_may_lie_on_it(
    api_server: AnyCluster, namespace: str, root: str, stages: list[str], changes: bool
) -> None:
    api_server.request("POST", objects(namespace), edited(minimal(), {f"storage.{root}": {"claim": "nmve"}}))
    draft = objects(namespace, "draft")
    begin(api_server, draft, *stages)
    mended = {"spec": {"storage": {root: {"claim": "nvme"}}}}
    if changes:
        after = api_server.request("PATCH", draft, mended, MERGE_PATCH)
        assert after["spec"]["storage"][root]["claim"] == "nvme"
    else:
        assert "storage cannot be changed" in refusal(api_server, "PATCH", draft, mended, MERGE_PATCH)


def test_how_a_bucket_is_reached_may_change_and_which_one_it_is_may_not(api_server: AnyCluster, namespace: str) -> None:
    bucket = {"objectStore": {"url": "s3://features/a", "secret": "misspelt"}}
    api_server.request("POST", objects(namespace), edited(minimal(), {"storage.features": bucket}))

    def change(store: dict[str, Any]) -> dict[str, Any]:
        return {"spec": {"storage": {"features": {"objectStore": store}}}}

    draft = objects(namespace, "draft")
    after = api_server.request("PATCH", draft, change({"secret": "bucket", "cache": "1Ti"}), MERGE_PATCH)
    assert after["spec"]["storage"]["features"]["objectStore"]["secret"] == "bucket"
    begin(api_server, draft, "inspect", "extract")
    assert "storage cannot be changed" in refusal(
        api_server, "PATCH", draft, change({"url": "s3://others"}), MERGE_PATCH
    )


def test_serving_can_be_added_to_a_draft_that_was_only_trained(api_server: AnyCluster, namespace: str) -> None:
    api_server.request("POST", objects(namespace), edited(minimal(), {"serve": REMOVED}))
    after = api_server.request("PATCH", objects(namespace, "draft"), {"spec": {"serve": {}}}, MERGE_PATCH)
    assert after["spec"]["serve"]["replicas"] == 1


def test_kubectl_scale_sets_the_replicas_of_the_servers(api_server: AnyCluster, namespace: str, stored: str) -> None:
    api_server.kubectl("scale", "--namespace", namespace, "e3d/draft", "--replicas=3")
    assert api_server.request("GET", stored)["spec"]["serve"]["replicas"] == 3


#: Arguments that a rule refuses, and that an object may hold from before the rule.
STORED_ARGUMENTS = {
    "several-in-one": ["--dp-size", "2"],
    "tokenizer": ["--tokenizer-path", "/models/tokenizer"],
    "cut-short": ["--model-pat", "/models/another"],
    "two-words": ["--dtype bfloat16"],
}


def test_an_object_with_arguments_that_a_newer_rule_refuses_is_still_scaled_and_edited(
    api_server: AnyCluster, namespace: str
) -> None:
    """Under a group of the test's own, whose definition gets the rules after the objects."""
    kind = yaml.safe_load(DEFINITION.read_text().replace(GROUP, "earlier.example"))
    unruled = copy.deepcopy(kind)
    (version,) = unruled["spec"]["versions"]
    serve = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["serve"]
    for schema in (serve, serve["properties"]["arguments"]):
        schema.pop("x-kubernetes-validations", None)
    path = objects(namespace).replace(GROUP, "earlier.example")

    def manifest(name: str) -> dict[str, Any]:
        return edited(minimal(name), {"serve.arguments": STORED_ARGUMENTS[name]}) | {
            "apiVersion": API_VERSION.replace(GROUP, "earlier.example")
        }

    def is_refused() -> bool:
        try:
            api_server.request("POST", f"{path}?dryRun=All", manifest("tokenizer") | {"metadata": {"name": "new"}})
        except ApiException as error:
            return "serve.arguments" in str(error.body)
        return False

    api_server.apply(unruled)
    wait_for("the kind to be served", 30, lambda: api_server.request("GET", path))
    for name in STORED_ARGUMENTS:
        api_server.request("POST", path, manifest(name))
    api_server.apply(kind)
    wait_for("the rules to hold", 30, is_refused)
    for name in STORED_ARGUMENTS:
        draft = f"eagle3drafts.earlier.example/{name}"
        api_server.kubectl("scale", "--namespace", namespace, draft, "--replicas=3")
        after = api_server.request("PATCH", f"{path}/{name}", {"spec": {"serve": {"gpus": 2}}}, MERGE_PATCH)
        assert (after["spec"]["serve"]["replicas"], after["spec"]["serve"]["gpus"]) == (3, 2)


@pytest.mark.parametrize("side", ["--server-side=false", "--server-side=true"], ids=["client", "server"])
def test_applying_an_object_again_leaves_it_as_many_servers_as_an_autoscaler_gave_it(
    api_server: AnyCluster, namespace: str, side: str
) -> None:
    """What the YAML does not say belongs to whoever scales."""

    def apply(edits: dict[str, Any]) -> None:
        written = yaml.safe_dump(edited(minimal(), edits))
        api_server.kubectl("apply", side, "--namespace", namespace, "-f", "-", stdin=written)

    apply({})
    api_server.kubectl("scale", "--namespace", namespace, "e3d/draft", "--replicas=3")
    apply({"probe": {"minSpeedup": 1.2}})
    after = api_server.request("GET", objects(namespace, "draft"))["spec"]
    assert (after["serve"]["replicas"], after["probe"]["minSpeedup"]) == (3, 1.2)


def status(phase: Phase) -> Eagle3DraftStatus:
    ready = Condition(
        type=Type.READY,
        status="True",
        reason=Reason.DRAFT_HEALTHY,
        message="r1 serves",
        observed_generation=1,
        last_transition_time="2026-01-01T00:00:00Z",
    )
    return Eagle3DraftStatus(
        observed_generation=1, phase=phase, conditions=[ready], revision="r1", accept="2.68", speedup="1.41x",
        progress="", draft="sha256:9f2c…", baseline="90.0 tok/s",
    )  # fmt: skip


def test_a_status_is_written_apart_and_read_back_whole(api_server: AnyCluster, stored: str) -> None:
    written = status(Phase.SERVING)
    body = {"status": written.to_json()}
    assert "status" not in api_server.request("PATCH", stored, body, MERGE_PATCH)
    after = api_server.request("PATCH", f"{stored}/status", body, MERGE_PATCH)
    assert after["status"] == written.to_json()
    assert after["metadata"]["generation"] == 1
    assert Eagle3DraftStatus.model_validate(after["status"]) == written


def test_words_that_a_newer_operator_reports_are_stored(api_server: AnyCluster, stored: str) -> None:
    body = status(Phase.SERVING).to_json() | {"phase": "Dreaming", "progress": "…" * 5000}
    body["conditions"] = [{**body["conditions"][0], "reason": "SinceNextYear"}]  # type: ignore[index]
    after = api_server.request("PATCH", f"{stored}/status", {"status": body}, MERGE_PATCH)
    assert after["status"] == body


def test_kubectl_get_shows_at_a_glance_how_a_draft_is_doing(
    api_server: AnyCluster, namespace: str, stored: str
) -> None:
    api_server.request("PATCH", f"{stored}/status", {"status": status(Phase.SERVING).to_json()}, MERGE_PATCH)
    header, row = api_server.kubectl("get", "e3d", "--namespace", namespace).splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "REASON", "REVISION", "ACCEPT", "SPEEDUP", "AGE"]
    assert row.split()[:-1] == ["draft", "Serving", "True", "DraftHealthy", "r1", "2.68", "1.41x"]
    header, row = api_server.kubectl("get", "e3d", "--namespace", namespace, "-o", "wide").splitlines()
    assert header.split()[-4:] == ["TARGET", "PROGRESS", "DRAFT", "BASELINE"]
    assert "/models/Llama-3.1-8B-Instruct" in row
    assert row.endswith("sha256:9f2c…   90.0 tok/s")


def test_kubectl_wait_knows_the_conditions(api_server: AnyCluster, namespace: str, stored: str) -> None:
    api_server.request("PATCH", f"{stored}/status", {"status": status(Phase.SERVING).to_json()}, MERGE_PATCH)
    said = api_server.kubectl("wait", "--namespace", namespace, "--for=condition=Ready", "--timeout=10s", "e3d/draft")
    assert said.strip() == "eagle3draft.eagle3.dev/draft condition met"


def test_kubectl_explain_reads_well(api_server: AnyCluster) -> None:
    def explained() -> str:
        return api_server.kubectl("explain", "eagle3draft.spec.serve")

    text = wait_for("the schema to be published", 60, explained, tolerate=(RuntimeError,))
    words = " ".join(text.split())
    assert "one SGLang Deployment per revision behind one Service. Leave it out to train only" in words
    assert "replicas <integer> Servers of the serving revision; kubectl scale and an HPA set it. Default 1." in words
    assert "surge <string> enum: IfFree, Never" in words
    assert "<no description>" not in text


def test_the_plugin_finds_an_object_as_kubectl_does(api_server: AnyCluster, namespace: str) -> None:
    api_server.request("POST", objects(namespace), minimal())
    assert plugin(api_server.kubeconfig, "status", "draft", "--namespace", namespace) == (
        0,
        "draft: the operator has not looked at it yet\n",
        "",
    )
    stored = api_server.kubectl("get", "e3d", "draft", "--namespace", namespace, "--output", "yaml")
    code, said, _ = plugin(api_server.kubeconfig, "estimate", "-f", "-", stdin=stored)
    assert (code, "nothing limits the data" in said) == (0, True), said


def test_what_the_plugin_cannot_be_told_it_says_in_one_line(
    api_server: AnyCluster, namespace: str, tmp_path: Path
) -> None:
    made = yaml.safe_load(api_server.kubeconfig.read_text())
    nobody, nowhere = tmp_path / "nobody", tmp_path / "nowhere"
    nobody.write_text(yaml.safe_dump(made | {"users": [{**made["users"][0], "user": {"token": "stale"}}]}))
    cluster = {**made["clusters"][0], "cluster": {"server": "https://127.0.0.1:1"}}
    nowhere.write_text(yaml.safe_dump(made | {"clusters": [cluster]}))
    for kubeconfig, where, words in (
        (api_server.kubeconfig, namespace, 'eagle3drafts.eagle3.dev "another" not found'),
        (api_server.kubeconfig, "no-such-namespace", 'namespaces "no-such-namespace" not found'),
        (_of_a_stranger(api_server, namespace, tmp_path), namespace, 'cannot get resource "eagle3drafts"'),
        (nobody, namespace, "You must be logged in to the server"),
        (nowhere, namespace, "127.0.0.1:1 was refused"),
        (tmp_path / "missing", namespace, "localhost:8080 was refused"),
    ):
        code, said, problem = plugin(kubeconfig, "status", "another", "--namespace", where)
        assert (code, said) == (1, "")
        (line,) = problem.splitlines()
        assert line.startswith("kubectl eagle3: ")
        assert words in line


def _of_a_stranger(api_server: AnyCluster, namespace: str, folder: Path) -> Path:
    """A kubeconfig of a service account that nothing is granted to."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api_server.request("POST", path, {"metadata": {"name": "stranger"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api_server.request("POST", f"{path}/stranger/token", request)["status"]["token"]
    made = yaml.safe_load(api_server.kubeconfig.read_text())
    made["users"] = [{**user, "user": {"token": token}} for user in made["users"]]
    file = folder / "stranger"
    file.write_text(yaml.safe_dump(made))
    return file


def plugin(kubeconfig: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, words and complaints of ``kubectl eagle3``, which kubectl itself finds beside this Python."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{build.kubectl().parent}:{path}"}
    command = [str(build.kubectl()), "eagle3", *words]
    done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr
