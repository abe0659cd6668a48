"""Every kopf decorator of the operator, and nothing else: watches become keys in the queue.

Only ``on.event`` handlers: the framework then writes nothing to any object, neither finalizer nor annotation.
"""

from dataclasses import dataclass
from typing import Any

import kopf

from eagle3_api import GROUP, PLURAL, VERSION
from eagle3_operator.cluster.queue import Key, Queue
from eagle3_operator.cluster.reconcile import Reconciler
from eagle3_operator.cluster.watches import CHILDREN, configure
from eagle3_operator.manifests.names import FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL
from eagle3_operator.settings import Settings

#: A request ends within seconds and a reconcile is a handful of them: whoever takes so long is stuck.
STUCK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Operator:
    """What the handlers work with; kopf hands it to each of them as ``memo``."""

    settings: Settings
    reconciler: Reconciler
    queue: Queue


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Set kopf up and start the queue."""
    configure(settings, namespaced=memo.settings.namespace is not None)
    memo.queue.start()


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """Let the reconciles under way end."""
    memo.reconciler.close()
    await memo.queue.stop()


@kopf.on.probe(id="overdue")
async def alive(memo: Operator, **_: Any) -> float:
    """Seconds by which the queue is behind. Not alive means that a reconcile hangs, not that the API server does."""
    overdue = memo.queue.overdue()
    if overdue > STUCK_SECONDS:
        raise kopf.PermanentError(f"no progress for {overdue:.0f} s")
    return overdue


@kopf.on.event(GROUP, VERSION, PLURAL)
async def object_changed(namespace: str | None, name: str | None, memo: Operator, **_: Any) -> None:
    """An object came, changed or went."""
    memo.queue.enqueue(Key(namespace or "", name or ""))


async def child_changed(namespace: str | None, labels: kopf.Labels, memo: Operator, **_: Any) -> None:
    """Something that an object made came, changed or went."""
    memo.queue.enqueue(Key(namespace or "", labels[NAME_LABEL]))


for _child in CHILDREN:
    kopf.on.event(*_child, labels={MANAGED_BY_LABEL: FIELD_MANAGER, NAME_LABEL: kopf.PRESENT})(child_changed)
