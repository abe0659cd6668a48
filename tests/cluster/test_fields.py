"""Each field of the object alone: what a real API server takes for it, and in which words it refuses what is next to that."""

import copy
from typing import Any

import pytest
import yaml

from eagle3_api import API_VERSION, KIND, PLURAL
from testcluster import AnyCluster
from testcluster.api import ApiException

REMOVED: Any = object()

#: A spec that says all that can be said at once. The numbers of one rule are such that each may take all its values beside the others.
WHOLE = yaml.safe_load("""
image: lmsysorg/sglang:v0.5.23
sglangVersion: 0.5.23
target: {model: acme/target, revision: v1, tensorParallelSize: 2, trustRemoteCode: true}
data:
  dataset: {repository: acme/talks, revision: v1, split: train, files: data/*.parquet}
  regenerate: {enabled: true, temperature: 0.7, topP: 0.9, maxTokens: 512, seed: 7}
  maxSamples: 1000
  maxLength: 1024
  expectedTokens: 100000
  holdout: 0.05
  chatTemplate: /data/template.jinja
draft: {vocabularySize: 32000, auxiliaryLayers: [2], depth: 2, variant: EAGLE-3.1, attention: Heads}
extract: {gpus: 2, shards: 2, dtype: fp8, teacher: TopK, retain: true, stallTimeout: 1h, placement: {cpu: "8"}}
train:
  gpus: 2
  nodes: 1
  sharding: Replicate
  epochs: 2
  tokensPerStep: 4096
  tokensPerPass: 1024
  learningRate: 0.001
  unrollSteps: 3
  loss: {kind: LKLambda, eta: 2, decay: 0.9, normalised: true}
  precision: bf16
  deterministic: true
  seed: 7
  evaluationsPerEpoch: 2
  earlyStop: {patience: 2, minImprovement: 0.1}
  trainer: {image: specforge, command: [train], arguments: [--fast]}
  logging: {tensorBoard: true, weightsAndBiases: {project: drafts, entity: llm}}
  checkpointInterval: 5m
  stallTimeout: 1h
  placement: {cpu: "8"}
serve:
  replicas: 2
  gpus: 64
  port: 8000
  contextLength: 8192
  maxRunningRequests: 256
  surge: Never
  whileTraining: ScaleToZero
  bakeTime: 1h
  startRetries: 1
  startTimeout: 1h
  speculative: {mode: Fixed, numSteps: 2, topK: 16, numDraftTokens: 3}
  arguments: [--dtype, bfloat16]
  placement: {cpu: "8"}
probe:
  minAcceptLength: 2
  minSpeedup: 1.2
  concurrency: 2
  loads: [8, 32]
  prompts: 16
  maxTokens: 64
  lossless: false
  parityBand: 0.5
watch:
  prometheus: {name: default}
  window: 1m
  minTokens: 100
  failures: {of: 1, in: 10}
  mode: Observe
  cooldown: 1h
  onNoData: Report
  driftBand: 0.5
  onDrift: Retrain
publish:
  oci: {reference: "registry.example.com/llm/draft:v1", secret: registry, plainHttp: true}
  objectStore:
    {url: "s3://drafts/llm", endpoint: "https://s3.example.com", region: eu-1, addressing: VirtualHost, secret: s3}
  hook:
    image: registry.example.com/cosign:v2
    command: [cosign, sign]
    env: [{name: KEY, secretKeyRef: {name: cosign, key: cosign.key}}]
    volumes: [models]
    timeout: 10m
storage:
  features:
    objectStore: {url: "s3://features/llm", endpoint: "http://minio:9000", addressing: Path, secret: s3, cache: 1Ti}
  drafts: {size: 100Gi, storageClassName: shared, accessMode: ReadWriteMany}
  models: {claim: models}
placement:
  labels: {cost-center: llm}
  annotations: {linkerd.io/inject: disabled}
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
  tolerations: [{key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}, {operator: Exists}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: pool, operator: In, values: [gpu, h200]}, {key: memory, operator: Gt, values: ["80000"]}]
          matchFields: [{key: metadata.name, operator: NotIn, values: [a]}]
      preferredDuringSchedulingIgnoredDuringExecution:
      - {weight: 1, preference: {matchExpressions: [{key: spot, operator: DoesNotExist}]}}
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {app: prompts}, matchExpressions: [{key: tier, operator: In, values: [a]}]}
        namespaces: [llm]
        namespaceSelector: {}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {matchExpressions: [{key: batch, operator: Exists}]}
  volumes:
  - {name: models, mountPath: /models, persistentVolumeClaim: {claimName: models, readOnly: true}}
  - {name: data, mountPath: /data, subPath: talks, persistentVolumeClaim: {claimName: data}}
  env: [{name: DEBUG, value: "1"}, {name: TOKEN, secretKeyRef: {name: hub, key: token}}]
  cpu: "16"
  memory: 256Gi
  gpuResource: nvidia.com/mig-3g.71gb
  shmSize: 32Gi
  terminationGracePeriodSeconds: 300
  priorityClassName: research
  runtimeClassName: nvidia
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  supplementalGroups: [2000]
  serviceAccountName: trainer
  imagePullSecrets: [registry]
queueName: team-a
suspend: true
deletionPolicy: Delete
revisionHistoryLimit: 5
autoApply: Never
""")
#: Short for the long paths of ``placement.affinity``.
NODES = "placement.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
BETTER_NODES = "placement.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution.0"
PODS = "placement.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.0"
BETTER_PODS = "placement.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.0"


def whole(path: str, value: Any) -> dict[str, Any]:
    """The whole spec with one field changed, or REMOVED; the path's numbers lead into lists."""
    made: dict[str, Any] = copy.deepcopy(WHOLE)
    at: Any = made
    steps: list[Any] = [int(step) if step.isdigit() else step for step in path.split(".")]
    *parents, last = steps
    for step in parents:
        at = at[step] if isinstance(at, list) else at.setdefault(step, {})
    if value is REMOVED:
        del at[last]
    else:
        at[last] = value
    return made


def said(api_server: AnyCluster, namespace: str, spec: dict[str, Any]) -> str:
    """The words with which an object of this spec is refused; none if it is taken."""
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "draft"}, "spec": spec}
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}?dryRun=All&fieldValidation=Strict"
    try:
        api_server.request("POST", path, manifest)
    except ApiException as refused:
        assert refused.status in (400, 422)
        return str(yaml.safe_load(str(refused.body))["message"])
    return ""


def written(path: str) -> str:
    """A path as the API server writes it: ``placement.volumes[0].name``."""
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split(".")).removeprefix(".")


def test_an_object_that_says_all_that_can_be_said_is_accepted(api_server: AnyCluster, namespace: str) -> None:
    assert said(api_server, namespace, WHOLE) == ""


#: Of each whole number the least and the most.
NUMBERS = {
    "target.tensorParallelSize": (1, 64),
    "data.regenerate.maxTokens": (1, 2**20),
    "data.regenerate.seed": (0, 2**31 - 1),
    "data.maxSamples": (1, 100_000_000),
    "data.maxLength": (16, 2**20),
    "data.expectedTokens": (1, 10**15),
    "draft.vocabularySize": (64, 2**20),
    "draft.auxiliaryLayers.0": (-1, 1023),
    "draft.depth": (1, 8),
    "extract.gpus": (0, 64),
    "extract.shards": (1, 64),
    "train.gpus": (0, 64),
    "train.epochs": (1, 1000),
    "train.tokensPerStep": (16, 2**24),
    "train.tokensPerPass": (16, 2**24),
    "train.unrollSteps": (1, 16),
    "train.seed": (0, 2**31 - 1),
    "train.evaluationsPerEpoch": (1, 100),
    "train.earlyStop.patience": (1, 1000),
    "serve.replicas": (0, 1000),
    "serve.gpus": (0, 64),
    "serve.port": (1024, 65535),
    "serve.contextLength": (16, 10 * 2**20),
    "serve.maxRunningRequests": (1, 65536),
    "serve.startRetries": (0, 10),
    "serve.speculative.numSteps": (1, 32),
    "serve.speculative.topK": (1, 16),
    "serve.speculative.numDraftTokens": (2, 256),
    "probe.concurrency": (1, 256),
    "probe.loads.0": (1, 256),
    "probe.prompts": (1, 64),
    "probe.maxTokens": (8, 4096),
    "watch.minTokens": (1, 10**9),
    "watch.failures.of": (1, 10),
    "watch.failures.in": (1, 10),
    "placement.terminationGracePeriodSeconds": (1, 3600),
    "placement.runAsUser": (1, 2**31 - 1),
    "placement.runAsGroup": (1, 2**31 - 1),
    "placement.fsGroup": (1, 2**31 - 1),
    "placement.supplementalGroups.0": (1, 2**31 - 1),
    f"{BETTER_NODES}.weight": (1, 100),
    f"{BETTER_PODS}.weight": (1, 100),
    "revisionHistoryLimit": (1, 20),
}
A_LITTLE = 1e-9
#: Of each other number what is just too little, the least, the most, and what is just too much.
SHARES = {
    "data.regenerate.temperature": (-A_LITTLE, 0, 2, 2 + A_LITTLE),
    "data.regenerate.topP": (0, A_LITTLE, 1, 1 + A_LITTLE),
    "data.holdout": (0, A_LITTLE, 0.5, 0.5 + A_LITTLE),
    "train.learningRate": (0, A_LITTLE, 1, 1 + A_LITTLE),
    "train.earlyStop.minImprovement": (0, A_LITTLE, 10, 10 + A_LITTLE),
    "train.loss.eta": (-A_LITTLE, 0, 100, 100 + A_LITTLE),
    "train.loss.decay": (0, A_LITTLE, 1, 1 + A_LITTLE),
    "probe.minAcceptLength": (1 - A_LITTLE, 1, 64, 64 + A_LITTLE),
    "probe.minSpeedup": (-A_LITTLE, 0, 100, 100 + A_LITTLE),
    "probe.parityBand": (0, A_LITTLE, 1, 1 + A_LITTLE),
    "watch.driftBand": (0, A_LITTLE, 1 - A_LITTLE, 1),
}
EDGES = SHARES | {path: (least - 1, least, most, most + 1) for path, (least, most) in NUMBERS.items()}


@pytest.mark.parametrize("path", EDGES)
def test_a_number_may_be_the_least_and_the_most_and_nothing_beyond(
    api_server: AnyCluster, namespace: str, path: str
) -> None:
    specs = [whole(path, number) for number in EDGES[path]]
    if path == "serve.maxRunningRequests":  # as many are probed, at most
        specs = [spec | {"probe": {}} for spec in specs]
    below, least, most, above = (said(api_server, namespace, spec) for spec in specs)
    assert (least, most) == ("", "")
    assert f"spec.{written(path)} in body should be greater than" in below
    assert f"spec.{written(path)} in body should be less than" in above


#: Of each choice all that there is to choose from, in the order in which the API server tells it.
CHOICES = {
    "draft.variant": ("EAGLE-3", "EAGLE-3.1"),
    "draft.attention": ("Heads", "Latent"),
    "extract.dtype": ("fp8", "bf16", "fp32"),
    "extract.teacher": ("LastState", "TopK"),
    "train.sharding": ("Full", "Hybrid", "Replicate"),
    "train.precision": ("bf16", "fp8"),
    "train.loss.kind": ("CrossEntropy", "KL", "LKAlpha", "LKLambda"),
    "serve.surge": ("IfFree", "Never"),
    "serve.whileTraining": ("Keep", "ScaleToZero"),
    "serve.speculative.mode": ("Fixed", "Auto"),
    "watch.mode": ("Enforce", "Observe"),
    "watch.onNoData": ("Ignore", "Report"),
    "watch.onDrift": ("Report", "Retrain"),
    "publish.objectStore.addressing": ("Path", "VirtualHost"),
    "storage.features.objectStore.addressing": ("Path", "VirtualHost"),
    "storage.features.accessMode": ("ReadWriteOnce", "ReadWriteMany"),
    "storage.drafts.accessMode": ("ReadWriteOnce", "ReadWriteMany"),
    "placement.tolerations.0.operator": ("Exists", "Equal"),
    "placement.tolerations.0.effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    f"{NODES}.0.matchExpressions.0.operator": ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    f"{PODS}.labelSelector.matchExpressions.0.operator": ("In", "NotIn", "Exists", "DoesNotExist"),
    "deletionPolicy": ("Retain", "Delete"),
    "autoApply": ("WhenNoOutage", "Always", "Never"),
}


@pytest.mark.parametrize("path", CHOICES)
def test_what_can_be_chosen_is_told_to_who_chooses_something_else(
    api_server: AnyCluster, namespace: str, path: str
) -> None:
    listed = ", ".join(f'"{choice}"' for choice in CHOICES[path])
    words = f'spec.{written(path)}: Unsupported value: "Maybe": supported values: {listed}'
    message = said(api_server, namespace, whole(path, "Maybe"))
    assert words in message
    assert f'{words}, "' not in message


EMPTY, LONG, FORM = "should be at least 1 chars long", "Too long: may not be more than", "should match '^"
#: Of each kind of text what is taken, and what is refused with which words; and the fields of that kind.
TEXTS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "a name": (
        ("a", "fast-2.ssd", "a" * 253),
        {"": EMPTY, "Team A": FORM, "-a": FORM, "a-": FORM, "a" * 254: f"{LONG} 253"},
        f"""
        publish.oci.secret publish.objectStore.secret publish.hook.env.0.secretKeyRef.name watch.prometheus.name
        storage.features.objectStore.secret storage.drafts.storageClassName storage.models.claim
        placement.volumes.0.persistentVolumeClaim.claimName placement.env.1.secretKeyRef.name placement.priorityClassName
        placement.runtimeClassName placement.serviceAccountName placement.imagePullSecrets.0 {PODS}.namespaces.0
        """,
    ),
    "a queue's name": (
        ("a", "team-2", "a" * 63),
        {"": EMPTY, "Team A": FORM, "a.b": FORM, "-a": FORM, "a-": FORM, "a" * 64: f"{LONG} 63"},
        "queueName",
    ),
    "a volume's name": (
        ("a", "talks-2", "a" * 50),
        {"": FORM, "Team A": FORM, "a.b": FORM, "-a": FORM, "a-": FORM, "a" * 51: f"{LONG} 50"},
        "placement.volumes.1.name",
    ),
    "a variable's name": (
        ("A", "_a1", "A" * 128),
        {"": FORM, "1A": FORM, "A-B": FORM, "A" * 129: f"{LONG} 128"},
        "placement.env.1.name publish.hook.env.0.name",
    ),
    "a key of a label": (
        ("a", "nvidia.com/gpu.product", "a" * 317),
        {"": EMPTY, "a" * 318: f"{LONG} 317"},
        f"""
        {NODES}.0.matchExpressions.0.key {NODES}.0.matchFields.0.key {PODS}.topologyKey {BETTER_PODS}.podAffinityTerm.topologyKey
        {PODS}.labelSelector.matchExpressions.0.key
        """,
    ),
    "a label's value, as nodes and pods have it": (
        ("", "NVIDIA H200", "a" * 317),
        {"a" * 318: f"{LONG} 317"},
        f"""
        placement.nodeSelector.pool placement.tolerations.0.key placement.tolerations.0.value
        {NODES}.0.matchExpressions.0.values.0 {PODS}.labelSelector.matchExpressions.0.values.0
        {PODS}.labelSelector.matchLabels.app
        """,
    ),
    "a label's value": (
        ("", "a", "Search_2.ads", "a" * 63),
        {"search and ads": FORM, "-a": FORM, "a-": FORM, "a" * 64: f"{LONG} 63"},
        "placement.labels.team",
    ),
    "an annotation's value": (("", "a" * 4096), {"a" * 4097: f"{LONG} 4096"}, "placement.annotations.about"),
    "a word of a command": (
        ("a", "a" * 4096),
        {"": EMPTY, "a" * 4097: f"{LONG} 4096"},
        "publish.hook.command.0 train.trainer.command.0 train.trainer.arguments.0",
    ),
    "a variable's value": (
        ("", "a" * 4096),
        {"a" * 4097: f"{LONG} 4096"},
        "placement.env.0.value",
    ),
    "an argument of SGLang's": (("a", "a" * 512), {"": EMPTY, "a" * 513: f"{LONG} 512"}, "serve.arguments.1"),
    "a few words": (
        ("a", "a b", "a" * 512),
        {"": EMPTY, "a" * 513: f"{LONG} 512"},
        """
        image train.trainer.image publish.hook.image publish.objectStore.region storage.features.objectStore.region placement.env.1.secretKeyRef.key
        publish.hook.env.0.secretKeyRef.key train.logging.weightsAndBiases.project train.logging.weightsAndBiases.entity
        """,
    ),
    "a folder of a claim": (("", "a" * 512), {"a" * 513: f"{LONG} 512"}, "placement.volumes.1.subPath"),
    "a pattern of files": (("a", "a" * 256), {"": EMPTY, "a" * 257: f"{LONG} 256"}, "data.dataset.files"),
    "a split": (
        ("a", "train_2", "a" * 64),
        {"": FORM, "train-2": FORM, "a b": FORM, "a" * 65: f"{LONG} 64"},
        "data.dataset.split",
    ),
    "a revision of a hub": (
        ("a", "refs/pr/1", "v1.0-rc_2", "a" * 200),
        {"": EMPTY, "-a": FORM, "a b": FORM, "a" * 201: f"{LONG} 200"},
        "target.revision data.dataset.revision",
    ),
    "a repository of a hub": (
        ("a/b", "meta-llama/Llama-3.1_8B", f"{'a' * 96}/{'b' * 96}"),
        {"": FORM, "a": FORM, "a/b/c": FORM, "-a/b": FORM, "a/-b": FORM, f"{'a' * 97}/b": FORM, f"a/{'b' * 97}": FORM},
        "data.dataset.repository",
    ),
    "a target": (
        ("a/b", f"{'a' * 96}/{'b' * 96}"),
        {
            "models": "a path as pods see it, which begins with /, or organisation/name of a hub",
            "a/b/c": "a path as pods see it, which begins with /, or organisation/name of a hub",
            "/": "should be at least 2 chars long",
            f"/{'a' * 512}": f"{LONG} 512",
        },
        "target.model",
    ),
    "a path": (
        ("/a", f"/{'a' * 511}"),
        {
            "talks.jsonl": "a path as pods see it, which begins with / and leads into a volume of placement.volumes",
            "a/b": "a path as pods see it, which begins with / and leads into a volume of placement.volumes",
            "/": "should be at least 2 chars long",
            f"/{'a' * 512}": f"{LONG} 512",
        },
        "data.chatTemplate",
    ),
    "where pods see a volume": (
        ("/a", f"/{'a' * 511}"),
        {
            "a/b": "where pods see the volume: a path that begins with /",
            "/": "should be at least 2 chars long",
            f"/{'a' * 512}": f"{LONG} 512",
        },
        "placement.volumes.1.mountPath",
    ),
    "a bucket": (
        ("s3://abc", "s3://abc/", "s3://a.b-c/d/e_f", f"s3://{'a' * 63}", f"s3://abc/{'d' * 503}"),
        {
            **dict.fromkeys(
                (
                    "abc",
                    "https://abc",
                    "s3://ab",
                    "s3://Abc",
                    "s3://abc-",
                    f"s3://{'a' * 64}",
                    "s3://abc//d",
                    "s3://abc/../d",
                ),
                "s3://BUCKET/PREFIX, with names between the slashes; a service that is not Amazon's is named in endpoint",
            ),
            f"s3://abc/{'d' * 504}": f"{LONG} 512",
        },
        "publish.objectStore.url storage.features.objectStore.url",
    ),
    "an address of a service": (
        ("http://minio:9000", "https://s3.example.com/a_b", f"http://{'a' * 505}"),
        {
            "minio:9000": FORM,
            "ftp://minio": FORM,
            "http://": FORM,
            "http://a b": FORM,
            f"http://{'a' * 506}": f"{LONG} 512",
        },
        "publish.objectStore.endpoint storage.features.objectStore.endpoint",
    ),
    "a place in a registry": (
        ("localhost/a", "r.io/llm/a_b:V1", "registry:5000/a", f"r.io/{'a' * 507}"),
        {
            **dict.fromkeys(
                ("llm/draft", "https://r.io/llm/draft", "r.io/LLM/draft", "r.io", "r.io/a:", "r.io/a@sha256:b"),
                "reference: name the registry too, in lower case and without https://",
            ),
            f"r.io/{'a' * 508}": f"{LONG} 512",
        },
        "publish.oci.reference",
    ),
    "a size": (
        ("1", "1.5T", "500m", "512Ki", "1k", "1M", "1G", "1P", "1Mi", "1Gi", "1Ti", "1Pi", f"{'1' * 30}Gi"),
        {
            **dict.fromkeys(
                ("", "2 TB", "2TB", "1.", ".5", "-1", "1ki"),
                "a quantity is a number and Kubernetes' unit, without a space",
            ),
            f"{'1' * 31}Gi": f"{LONG} 32",
        },
        """
        storage.features.objectStore.cache storage.drafts.size placement.cpu placement.memory placement.shmSize
        """,
    ),
    "a resource of nodes": (
        ("nvidia.com/gpu", "a/B_1.x", f"a/{'b' * 251}"),
        {
            **dict.fromkeys(
                ("", "gpu", "A.com/gpu", "a/b/c", "a/"), "what nodes offer, as kubectl describe nodes lists it"
            ),
            f"a/{'b' * 252}": f"{LONG} 253",
        },
        "placement.gpuResource",
    ),
    "a length of time": (
        ("0s", "90s", "10m", "1h30m", "1h30m5s", "99999h"),
        {
            "": "should be at least 2 chars long",
            **dict.fromkeys(
                ("90", "10 min", "30m1h", "1.5h", "100000h"),
                "a length of time is written in hours, minutes and seconds, of five digits at most: 90s, 10m, 1h30m",
            ),
            f"{'1' * 16}h": f"{LONG} 16",
        },
        "serve.bakeTime watch.cooldown",
    ),
    "a length of time that is not zero": (
        ("1s", "10m", "1h30m", "1h30m5s", "99999h"),
        {
            "": "should be at least 2 chars long",
            **dict.fromkeys(
                ("0s", "90", "10 min", "30m1h", "100000h"),
                "a length of time that is not zero is written in hours, minutes and seconds, of five digits at most: 90s, 10m, 1h30m",
            ),
            f"{'1' * 16}h": f"{LONG} 16",
        },
        """
        extract.stallTimeout train.stallTimeout train.checkpointInterval serve.startTimeout publish.hook.timeout
        """,
    ),
    "a window": (
        ("10s", "90s", "1m", "1m1s", "1h", "1h30m5s", "99999h"),
        {
            "": "should be at least 2 chars long",
            **dict.fromkeys(
                ("0s", "9s", "90", "10 min", "30m1h", "100000h"),
                "a window of ten seconds at least is written in hours, minutes and seconds, of five digits at most: 30s, 10m, 1h30m",
            ),
            f"{'1' * 16}h": f"{LONG} 16",
        },
        "watch.window",
    ),
    "a release of SGLang": (
        ("0.5.23", "0.5.23.post1", "10.0.0"),
        dict.fromkeys(("", "v0.5.23", "0.5", "0.5.23rc1", "latest"), "a release of SGLang, without v"),
        "sglangVersion",
    ),
}
KIND_OF = {path: kind for kind, (_, _, paths) in TEXTS.items() for path in paths.split()}


@pytest.mark.parametrize("path", KIND_OF)
def test_a_text_is_taken_or_refused_as_all_of_its_kind_are(api_server: AnyCluster, namespace: str, path: str) -> None:
    """The first field of a kind is asked about every text, the others about the longest, one of another form, and one too long."""
    taken, refused, paths = TEXTS[KIND_OF[path]]
    if path != paths.split()[0]:
        taken, refused = taken[-1:], dict([*refused.items()][-2:])
    assert {text: said(api_server, namespace, whole(path, text)) for text in taken} == dict.fromkeys(taken, "")
    answers = {text: said(api_server, namespace, whole(path, text)) for text in refused}
    assert [text for text, words in refused.items() if words not in answers[text]] == []


#: What must be said where what it stands in is.
REQUIRED = f"""
    image target storage target.model data.dataset.repository
    train.trainer.image train.trainer.command train.logging.weightsAndBiases.project storage.features storage.drafts
    storage.features.objectStore.url publish.objectStore.url publish.oci.reference publish.hook.image publish.hook.command
    publish.hook.env.0.name publish.hook.env.0.secretKeyRef.name publish.hook.env.0.secretKeyRef.key
    placement.volumes.0.name placement.volumes.0.mountPath placement.volumes.0.persistentVolumeClaim
    placement.volumes.0.persistentVolumeClaim.claimName placement.env.0.name
    placement.env.1.secretKeyRef.name placement.env.1.secretKeyRef.key watch.prometheus.name
    {NODES} {NODES}.0.matchExpressions.0.key {NODES}.0.matchExpressions.0.operator {BETTER_NODES}.weight {BETTER_NODES}.preference
    {PODS}.labelSelector {PODS}.topologyKey {BETTER_PODS}.weight {BETTER_PODS}.podAffinityTerm
    {PODS}.labelSelector.matchExpressions.0.key {PODS}.labelSelector.matchExpressions.0.operator
""".split()


@pytest.mark.parametrize("path", REQUIRED)
def test_what_is_left_out_and_must_be_there_is_named(api_server: AnyCluster, namespace: str, path: str) -> None:
    assert f"spec.{written(path)}: Required value" in said(api_server, namespace, whole(path, REMOVED))


#: Of each list, and of each map, how many it must have at least and may have at most.
MANY = {
    "draft.auxiliaryLayers": (1, 8),
    "train.trainer.command": (1, 64),
    "train.trainer.arguments": (0, 64),
    "serve.arguments": (0, 64),
    "probe.loads": (0, 4),
    "publish.hook.command": (1, 64),
    "publish.hook.env": (0, 32),
    "publish.hook.volumes": (0, 16),
    "placement.labels": (0, 32),
    "placement.annotations": (0, 32),
    "placement.nodeSelector": (0, 32),
    "placement.tolerations": (0, 32),
    NODES: (1, 8),
    f"{NODES}.0.matchExpressions": (0, 16),
    f"{NODES}.0.matchFields": (0, 4),
    f"{NODES}.0.matchExpressions.0.values": (1, 64),
    BETTER_NODES.removesuffix(".0"): (0, 8),
    PODS.removesuffix(".0"): (0, 8),
    BETTER_PODS.removesuffix(".0"): (0, 8),
    f"{PODS}.namespaces": (0, 16),
    f"{PODS}.labelSelector.matchLabels": (0, 16),
    f"{PODS}.labelSelector.matchExpressions": (0, 8),
    f"{PODS}.labelSelector.matchExpressions.0.values": (1, 64),
    "placement.volumes": (0, 16),
    "placement.env": (0, 64),
    "placement.supplementalGroups": (0, 16),
    "placement.imagePullSecrets": (0, 8),
}


@pytest.mark.parametrize("path", MANY)
def test_a_list_has_as_many_items_as_it_may_and_must(api_server: AnyCluster, namespace: str, path: str) -> None:
    """The words come before those that say that two of its items are alike."""
    least, most = MANY[path]
    at: Any = WHOLE
    for step in path.split("."):
        at = at[int(step) if step.isdigit() else step]

    def of(number: int) -> Any:
        """A list or map of so many, of what stands in the whole object."""
        if isinstance(at, dict):
            return {f"key-{one}": next(iter(at.values())) for one in range(number)}
        return [at[0]] * number

    def answer(number: int) -> str:
        return said(api_server, namespace, whole(path, of(number)))

    assert f"spec.{written(path)}: Too many: {most + 1}: must have at most {most} items" in answer(most + 1)
    assert "Too many" not in answer(most)
    assert ("should have at least" in answer(max(least - 1, 0))) is (least > 0)


VALUES = "affinity: Exists and DoesNotExist take no values, the other operators need them"


@pytest.mark.parametrize(
    ("path", "requirement", "words"),
    [
        *(
            (path, requirement, VALUES)
            for path in (
                f"{NODES}.0.matchExpressions.0",
                f"{NODES}.0.matchFields.0",
                f"{PODS}.labelSelector.matchExpressions.0",
            )
            for requirement in (
                {"operator": "In"},
                {"operator": "Exists", "values": ["a"]},
                {"operator": "DoesNotExist", "values": ["a"]},
            )
        ),
        *(
            (
                f"{NODES}.0.matchExpressions.0",
                {"operator": operator, "values": ["1", "2"]},
                "affinity: Gt and Lt take one value",
            )
            for operator in ("Gt", "Lt")
        ),
    ],
)
def test_a_requirement_of_affinity_has_the_values_that_its_operator_takes(
    api_server: AnyCluster, namespace: str, path: str, requirement: dict[str, Any], words: str
) -> None:
    assert words in said(api_server, namespace, whole(path, {"key": "a", **requirement}))
