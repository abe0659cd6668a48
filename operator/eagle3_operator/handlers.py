"""Every kopf decorator of the operator, and nothing else: watches become keys in the queue.

Only ``on.event`` handlers: the framework then writes nothing to any object, neither finalizer nor annotation.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import kopf

from eagle3_api import GROUP, PLURAL, VERSION
from eagle3_operator.cluster.queue import Key, Queue
from eagle3_operator.cluster.reconcile import Reconciler
from eagle3_operator.cluster.wakeups import Wakeups
from eagle3_operator.cluster.watches import configure
from eagle3_operator.settings import Settings

#: A request ends within seconds and a reconcile is a handful of them: whoever takes so long is stuck.
STUCK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Operator:
    """What the handlers work with; kopf hands it to each of them as ``memo``."""

    settings: Settings
    reconciler: Reconciler
    queue: Queue
    wakeups: Wakeups


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Set kopf up and start the queue."""
    configure(settings, namespaced=memo.settings.namespace is not None)
    memo.queue.start()
    # Before kopf tells of any object: whatever happens to its children after the first look at it is told.
    await asyncio.to_thread(memo.wakeups.start)


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """Let the reconciles under way end."""
    memo.wakeups.stop()
    memo.reconciler.close()
    await memo.queue.stop()


@kopf.on.probe(id="overdue")
async def alive(memo: Operator, **_: Any) -> float:
    """Seconds for which the queue stands still. Not alive means that a reconcile hangs, not that the API server does."""
    overdue = memo.queue.overdue()
    if overdue > STUCK_SECONDS:
        raise kopf.PermanentError(f"no progress for {overdue:.0f} s")
    return overdue


@kopf.on.event(GROUP, VERSION, PLURAL)
async def object_changed(namespace: str | None, name: str | None, memo: Operator, **_: Any) -> None:
    """An object came, changed or went."""
    memo.queue.wake(Key(namespace or "", name or ""))
