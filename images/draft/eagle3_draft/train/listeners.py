"""Who is told how a training goes: Prometheus, TensorBoard, Weights & Biases."""

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import prometheus_client

from eagle3_api.jobs import TrainConfig
from eagle3_api.spec import WeightsAndBiases as Project
from eagle3_draft.train.evaluate import Evaluation

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@dataclass(frozen=True)
class StepMeasures:
    """What is known of one optimizer step."""

    step: int
    loss: float
    accuracy: float  # of the first unroll step
    gradient_norm: float  # before it was cut
    learning_rate: float
    tokens: int  # of all steps so far
    tokens_per_second: float  # since the beginning
    waiting: float  # share of the time that the device stood still for want of a batch
    seconds_left: float  # to the last step, at the speed of those that are done; measures come on top
    peak_bytes: int  # of memory, on this rank in this try: the GPU's, or the process's on a CPU


class Listener(Protocol):
    """Somebody who is told."""

    def step(self, measures: StepMeasures) -> None:
        """An optimizer step was done."""

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """The draft was measured on the held-out conversations."""

    def close(self) -> None:
        """The training has ended."""


class Prometheus:
    """``/metrics`` of the pod, each with the prefix ``eagle3_train_``, and ``/progress`` as JSON. Stands as long as the process.

    Args:
        port: to listen on.
        steps: of the whole training.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int, steps: int) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._steps = self._gauge("steps", "Optimizer steps of the whole training.")
        self._steps.set(steps)
        self._step = self._gauge("step", "Optimizer steps that are done.")
        self._tokens = self._gauge("tokens", "Tokens of the steps that are done.")
        self._loss = self._gauge("loss", "Loss of the last step.")
        self._accuracy = self._gauge("accuracy", "Share of right proposals of the first unroll step, in the last step.")
        self._norm = self._gauge("gradient_norm", "Norm of the last step's gradient, before it was cut.")
        self._rate = self._gauge("learning_rate", "Learning rate of the last step.")
        self._speed = self._gauge("tokens_per_second", "Tokens a second, of all steps.")
        self._waiting = self._gauge(
            "waiting_share", "Share of the time of all steps in which the device had no batch to compute."
        )
        self._peak = self._gauge("peak_memory_bytes", "Memory that the first process took at most since it began.")
        self._held_out_loss = self._gauge("held_out_loss", "Loss on the held-out conversations.")
        self._accept_length = self._gauge(
            "expected_accept_length",
            "By replay on the held-out conversations, with so many draft steps.",
            "draft_steps",
        )
        self._survival = self._gauge(
            "prefix_survival",
            "Share of chains on the held-out conversations that are right up to a step.",
            "unroll_step",
        )
        self._all_steps = steps
        self._progress = self._progress_at(0, None, None)
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - of a pod, which others scrape
        self._server, _ = prometheus_client.start_http_server(port, everywhere, registry=self.registry)
        self._metrics: WSGIApplication = prometheus_client.make_wsgi_app(self.registry)
        self._server.set_app(self._answer)

    def step(self, measures: StepMeasures) -> None:
        self._step.set(measures.step)
        self._tokens.set(measures.tokens)
        self._loss.set(measures.loss)
        self._accuracy.set(measures.accuracy)
        self._norm.set(measures.gradient_norm)
        self._rate.set(measures.learning_rate)
        self._speed.set(measures.tokens_per_second)
        self._waiting.set(measures.waiting)
        self._peak.set(measures.peak_bytes)
        self._progress = self._progress_at(measures.step, measures.seconds_left, measures.loss)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self._held_out_loss.set(evaluation.loss)
        for number, length in enumerate(evaluation.accept_length, 1):
            self._accept_length.labels(number).set(length)
        for number, share in enumerate(evaluation.prefix_survival, 1):
            self._survival.labels(number).set(share)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/progress":
            return self._metrics(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self._progress).encode()]

    def _progress_at(self, step: int, seconds_left: float | None, loss: float | None) -> dict[str, float | None]:
        return {
            "done": step / self._all_steps if self._all_steps else 1.0,  # none where another trainer did them
            "secondsLeft": seconds_left,
            "step": step,
            "steps": self._all_steps,
            "loss": loss,
        }

    def _gauge(self, name: str, meaning: str, *labels: str) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(f"eagle3_train_{name}", meaning, labels, registry=self.registry)


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        folder: that receives them; a resumed training adds one.
    """

    def __init__(self, folder: Path) -> None:
        # An option: SGLang's image does not have it
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def step(self, measures: StepMeasures) -> None:
        for name, value in _scalars(measures).items():
            self._writer.add_scalar(name, value, measures.step)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        for name, value in _held_out_scalars(evaluation).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, one for each training however often it is resumed.

    Args:
        config: of the stage.
        asked: names the project; the key comes from the environment (WANDB_API_KEY, through ``placement.env``).
    """

    def __init__(self, config: TrainConfig, asked: Project) -> None:
        # An option: SGLang's image does not have it
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        self._run = wandb.init(
            project=asked.project,
            entity=asked.entity,
            id=f"{config.owner.uid[:13]}-{config.key}",
            name=f"{config.owner.namespace}/{config.owner.name}",
            resume="allow",
            config=config.to_json(),
        )

    def step(self, measures: StepMeasures) -> None:
        self._run.log(_scalars(measures), step=measures.step)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self._run.log(_held_out_scalars(evaluation), step=step)

    def close(self) -> None:
        self._run.finish()


def _scalars(measures: StepMeasures) -> dict[str, float]:
    return {
        "train/loss": measures.loss,
        "train/accuracy": measures.accuracy,
        "train/gradient_norm": measures.gradient_norm,
        "train/learning_rate": measures.learning_rate,
        "speed/tokens_per_second": measures.tokens_per_second,
        "speed/waiting_share": measures.waiting,
    }


def _held_out_scalars(evaluation: Evaluation) -> dict[str, float]:
    found = {"held_out/loss": evaluation.loss}
    lists = {
        "accuracy/step": evaluation.accuracy,
        "prefix_survival/step": evaluation.prefix_survival,
        "accept_length/drafted": evaluation.accept_length,
    }
    for name, values in lists.items():
        found |= {f"held_out/{name}_{number}": value for number, value in enumerate(values, 1)}
    return found
