"""The API of eagle3-operator: what users write, what the operator reports, and what its two planes say to each other.

- ``spec``, ``status``, ``conditions``: the ``Eagle3Draft`` object; ``crd`` turns them into the CustomResourceDefinition.
- ``jobs``, ``artifacts``, ``manifest``, ``exit_codes``: the contract between the control plane and the Jobs that it starts.
- ``sglang``, ``checkpoints``, ``estimate``, ``rates``: facts and rules that both planes need.

It imports nothing but pydantic, so that it loads in an operator's image, in an SGLang image and on a laptop alike.
"""

GROUP = "eagle3.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "Eagle3Draft"
PLURAL = "eagle3drafts"
