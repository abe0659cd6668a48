"""What a training tells while it runs: progress lines, Prometheus, TensorBoard, Weights & Biases.

None of it decides anything: a listener that fails, at the beginning or in the midst of a training, costs a line in the log,
not the training. One that was asked for and cannot exist (no such library in the image) is refused before the first step.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.train.evaluate import Evaluation
from eagle3_draft.train.listeners import Listener, Prometheus, StepMeasures, TensorBoard, WeightsAndBiases

#: TensorBoard's files, a folder of the artifact.
TENSORBOARD = "tensorboard"


class Telemetry:
    """All listeners, and the progress lines.

    Args:
        config: says who listens.
        steps: of the whole training.
        warning: that every progress line ends with.
        heard: whether listeners are told, or only the log of this pod: rank 0 tells them for all.
    """

    def __init__(self, config: TrainConfig, steps: int, *, warning: str = "", heard: bool = True) -> None:
        self._progress = ProgressReporter(steps, "steps")
        self._progress.warning = warning
        self._listeners = list(_listeners(config, steps)) if heard else []

    def say(self, done: float, message: str) -> None:
        """A progress line: steps that are done, and words."""
        self._progress.update(done, message)

    def step(self, measures: StepMeasures, message: str) -> None:
        """An optimizer step was done."""
        self.say(measures.step, message)
        for listener in list(self._listeners):
            with _Tolerated(self._listeners, listener):
                listener.step(measures)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """The draft was measured."""
        for listener in list(self._listeners):
            with _Tolerated(self._listeners, listener):
                listener.evaluation(step, evaluation)

    def close(self) -> None:
        """The training has ended, well or not."""
        for listener in list(self._listeners):
            with _Tolerated(self._listeners, listener):
                listener.close()


class _Tolerated:
    """Lets a listener fail: it is told nothing any more, and the log says so."""

    def __init__(self, listeners: list[Listener], listener: Listener) -> None:
        self._listeners = listeners
        self._listener = listener

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._listeners.remove(self._listener)
        sys.stderr.write(f"{type(self._listener).__name__} hears no more of this training: {error}\n")
        return True


def check_libraries(config: TrainConfig) -> None:
    """Refuse a listener whose library the image does not have.

    Raises:
        StageError: InvalidConfiguration, naming the field, the library and the image's part in it.
    """
    wanted: dict[str, Sequence[str]] = {
        "tensorBoard": ["tensorboard"] if config.tensor_board else [],
        "weightsAndBiases": ["wandb"] if config.weights_and_biases else [],
    }
    for field, libraries in wanted.items():
        for library in libraries:
            if importlib.util.find_spec(library) is None:
                raise StageError(
                    ExitCode.BAD_CONFIGURATION,
                    Reason.INVALID_CONFIGURATION,
                    f"train.logging.{field} needs the Python package {library}, which spec.image does not have: build an "
                    f"image from it with 'pip install {library}', or leave the field out. /metrics of the training's pod "
                    "has the same numbers without it",
                )


def _listeners(config: TrainConfig, steps: int) -> Iterator[Listener]:
    """Those that were asked for and can be reached. A training that is tried again must not end of an outage elsewhere."""
    asked: dict[str, Callable[[], Listener]] = {}
    if (port := config.metrics_port) is not None:
        asked[f"/metrics on port {port}"] = lambda: Prometheus(port, steps)
    if config.tensor_board:
        asked["TensorBoard"] = lambda: TensorBoard(Path(config.folder) / TENSORBOARD)
    if (project := config.weights_and_biases) is not None:
        asked["Weights & Biases"] = lambda: WeightsAndBiases(config, project)
    for name, made in asked.items():
        try:
            listener = made()
        except Exception as error:  # whatever a library raises
            sys.stderr.write(f"no {name} for this training: {error}\n")
        else:
            yield listener
