"""What the operator asks of Kubernetes, as plain values: Jobs, Deployments, Services and claims.

Builders are pure. They take the object, what Inspect found and the operator's settings, and return the whole manifest as
a dict for server-side apply; no client, no clock, nothing read from anywhere. What they make is compared as a whole with
golden files whose names are sentences, so a reader who wants to know what a draft revision looks like opens one:

    deployment(obj, settings, facts, number=1, key=key, replicas=1, draft=folder, record=record)
    # tests/unit/manifests/golden/a-draft-revision-speculates-with-EAGLE3.yaml

- ``names``: names, labels, annotations, owners.
- ``pods``: what all pods have in common. A pod is a ``Placement`` (the user's) and a ``Program`` (what it runs).
- ``jobs``: the Job of a stage. It is never patched: ``template_hash`` tells whether it is still the one that is wanted.
- ``sizing``: what an object makes of a stage: placement, GPUs, pods, queue.
- ``flags``: a server's command line, each flag with its reason, and what ``/server_info`` must say afterwards.
- ``servers``: a revision's Deployment and Service, and the public Service, whose selector is promotion and rollback.
- ``claims``: claims for the two roots, where the user gave a size.

Four rules hold throughout. Whatever SGLang or Kubernetes would choose in silence is written out where it matters. A
revision's template is made once and never changes; only its replicas do. Nothing that a user can write makes a pod
privileged. And a plain server depends on nothing that a draft needs, because it is what remains when all else is lost.
"""
