"""One reconcile: look at everything anew, decide, act, write the status once, tell."""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from eagle3_api import KIND
from eagle3_api.conditions import EventReason, Reason, Type
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.cluster import events, status
from eagle3_operator.cluster.act import Deeds, act
from eagle3_operator.cluster.client import (
    ApiError,
    Client,
    ConflictError,
    Json,
    NotFoundError,
    StoppingError,
)
from eagle3_operator.cluster.observe import Observer
from eagle3_operator.cluster.queue import Key, UnfinishedError
from eagle3_operator.decide.refusals import shortened
from eagle3_operator.decision import Decision, Event
from eagle3_operator.logs import about
from eagle3_operator.metrics import Metrics
from eagle3_operator.observation import Observation
from eagle3_operator.settings import Settings

logger = logging.getLogger(__name__)

Decide = Callable[[Eagle3Draft, Observation, Settings, datetime], Decision]


class Reconciler:
    """Reconciles objects, each call in a thread of its own pool.

    Args:
        client: of the API server.
        observer: looks at an object's children.
        settings: of the operator.
        decide: what to do about an object; pure.
        metrics: where reconciles are counted.
        now: the time.
    """

    def __init__(
        self,
        client: Client,
        observer: Observer,
        settings: Settings,
        *,
        decide: Decide,
        metrics: Metrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._observer = observer
        self._settings = settings
        self._decide = decide
        self._metrics = metrics
        self._now = now
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="reconcile")

    async def reconcile(self, key: Key) -> float | None:
        """Bring one object a step nearer to what it should be.

        Returns:
            Seconds until it must be looked at again though nothing has changed; None if it need not.

        Raises:
            UnfinishedError: all else is done and said, but something was refused; that is to be tried again.
            Exception: anything else; the object is to be tried again later.
        """
        with about(*key):
            context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, self._measured, key)

    async def keys(self) -> list[Key]:
        """The keys of all objects that are watched."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._keys)

    def close(self) -> None:
        """Begin nothing new; what is under way ends with its present request."""
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _keys(self) -> list[Key]:
        found = self._client.metadata(KIND, self._settings.namespace)
        return [Key(metadata["namespace"], metadata["name"]) for metadata in found]

    def _measured(self, key: Key) -> float | None:
        begin = time.perf_counter()
        try:
            result, again = self._reconcile(key)
        except (ConflictError, NotFoundError) as change:
            logger.info("looked at again, because something changed meanwhile: %s", change)
            self._metrics.reconciled("conflict", time.perf_counter() - begin)
            raise
        except StoppingError:
            logger.info("left as it is, because the operator is stopping")
            raise
        except UnfinishedError:
            self._metrics.reconciled("refused", time.perf_counter() - begin)
            raise
        except Exception as error:
            # What the API server refuses is said by the error; of anything else one wants to know where it was.
            trace = None if isinstance(error, ApiError) else error
            logger.error("the reconcile failed and will be tried again: %s", error, exc_info=trace)
            self._metrics.reconciled("failed", time.perf_counter() - begin)
            self._metrics.failed(error)
            raise
        self._metrics.reconciled(result, time.perf_counter() - begin)
        return again

    def _reconcile(self, key: Key) -> tuple[str, float | None]:
        seen = self._client.get(KIND, *key)
        if seen is None:
            self._metrics.gone(*key)
            return "gone", None
        if "deletionTimestamp" in seen["metadata"]:
            self._metrics.gone(*key)  # nobody is to be called for it, however long others keep it
            return "gone", None  # its children name it as their owner and go with it
        now = self._now()
        try:
            obj = Eagle3Draft.model_validate(seen)
            stored = Eagle3DraftStatus.as_of(obj.status, now)
        except ValidationError as error:
            return self._stall(key, seen, now, Reason.INVALID_CONFIGURATION, _unreadable(error)), None
        children = self._observer.observe(obj, stored, now)
        observation, tried = children.observation, Deeds()
        owner, metadata = obj.metadata.uid, children.metadata
        while True:
            try:
                decision = self._decide(obj, observation, self._settings, now)
            except Exception as error:
                self._stall(key, seen, now, Reason.INTERNAL_ERROR, _defect(error, seen))
                raise
            for own in decision.own:
                self._observer.forget(key.namespace, own.claim)
            refusal = act(self._client, decision, namespace=key.namespace, owner=owner, seen=metadata, tried=tried)
            if refusal is None:
                break
            observation = replace(observation, refused=(*observation.refused, refusal))
        result = self._write(key, seen, now, decision.status.to_json(), decision.events)
        if observation.refused:
            unfinished = UnfinishedError("; ".join(map(str, observation.refused)), decision.requeue_after)
            news = result == "written" and any(told.reason is EventReason.REFUSED for told in decision.events)
            logger.log(logging.WARNING if news else logging.DEBUG, "refused, and will be tried again: %s", unfinished)
            raise unfinished
        return result, decision.requeue_after

    def _stall(self, key: Key, seen: Json, now: datetime, reason: Reason, message: str) -> str:
        made = status.stalled(seen, reason, message, now)
        news = (Event("Warning", EventReason(reason), message),) if made != seen.get("status") else ()
        return self._write(key, seen, now, made, news)

    def _write(self, key: Key, seen: Json, now: datetime, made: Json, told: tuple[Event, ...]) -> str:
        self._metrics.known(*key, made["phase"], available=status.available(made))
        written = status.write(self._client, seen, made)
        if written:
            logger.info("%s", _summary(made))
        events.post(self._client, seen, told, now)
        return "written" if written else "settled"


def _summary(made: Json) -> str:
    """One line about an object's new status: its phase, and what Ready says."""
    ready = status.condition(made, Type.READY)
    return f"{made['phase']}: {ready.get('reason', '')} {ready.get('message', '')}".strip()


#: What is told of a defect begins so, and its type follows.
_DEFECT = "the operator hit an internal error while deciding what to do, and changed nothing: "


def _defect(error: Exception, seen: Json) -> str:
    """What is told of a defect. What the status tells of one of its type stays: words that differ each time, of an address in memory,
    would be written each time, and each write wakes the object.
    """
    told = status.told_stalled(seen, Reason.INTERNAL_ERROR)
    if told.startswith(f"{_DEFECT}{type(error).__name__}: "):
        return told
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"{_DEFECT}{shortened(said)}. Report it with the "
        "operator's log; undoing the last edit, or going back to the previous version of the operator, may help"
    )


def _unreadable(error: ValidationError) -> str:
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)[:3]]
    return f"this version of the operator cannot read the object: {'; '.join(faults)}. Nothing was changed."
