"""The target run by transformers: one forward a conversation, all states of it.

It is the independent check of the other engine, and runs where there is no SGLang.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

import torch
import transformers

from eagle3_api.conditions import Reason
from eagle3_api.features import TeacherKind
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.dialogue import Answer
from eagle3_draft.errors import StageError
from eagle3_draft.extract.engine import AskerT, Sampling, States
from eagle3_draft.features import mapped, teach

#: What ``--dtype`` of SGLang is called in torch.
_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "float": torch.float32,
}

_GENERATION: Any = transformers.GenerationConfig

#: Tokens of the first conversation on which the head is tried: enough to tell, and few logits.
_TRIED_TOKENS = 64


class TransformersEngine:
    """Runs a target with transformers.

    Args:
        model: a causal language model of transformers.
        layers: whose outputs are taken, 0-based; -1 is the embedding.
        teacher: in which form the target's answers are taken.
    """

    def __init__(self, model: Any, layers: Sequence[int], teacher: TeacherKind = "LastState") -> None:
        config = model.config.get_text_config()
        self.hidden_size: int = config.hidden_size
        self.vocabulary_size: int = config.vocab_size
        self.provenance = {
            "engine": f"transformers {transformers.__version__}",
            "torch": str(torch.__version__),
            "device": str(model.device),
            "dtype": str(model.dtype),
        }
        # Its own may penalise, or draw from the top few, where the object says otherwise; where it ends stays
        model.generation_config = _GENERATION(eos_token_id=model.generation_config.eos_token_id)
        self._model = model
        self._teacher = teacher
        # hidden_states[0] is the embedding's output, hidden_states[i + 1] that of layer i, but the very last is after the norm
        self._taken = [layer + 1 for layer in layers]
        self._before_norm: list[torch.Tensor] = []
        if max(layers) == config.num_hidden_layers - 1:
            model.get_decoder().layers[-1].register_forward_hook(self._keep)
        self._short_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._head_tried = False

    @classmethod
    def load(
        cls,
        target: Path,
        layers: Sequence[int],
        *,
        teacher: TeacherKind = "LastState",
        arguments: Sequence[str] = (),
        trust_remote_code: bool = False,
    ) -> "TransformersEngine":
        """Load the target in a folder, on a GPU if there is one.

        Args:
            target: the folder.
            layers: whose outputs are taken.
            teacher: in which form the target's answers are taken.
            arguments: of the server; ``--dtype`` is followed, so that the states are computed as they will be served.
            trust_remote_code: let the target's own code run.

        Raises:
            StageError: it cannot be loaded, or not completely (TargetUnreadable).
        """
        auto: Any = transformers.AutoModelForCausalLM
        try:
            model, loaded = auto.from_pretrained(
                target,
                dtype=_dtype(arguments),
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise _unreadable(target, f"cannot be loaded: {error}") from error
        absent = sorted({*loaded["missing_keys"], *(str(key) for key in loaded["mismatched_keys"])})
        if absent:
            raise _unreadable(target, f"has no fitting weights for {', '.join(absent[:3])}; they would be random")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.to(device).eval(), layers, teacher)

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        """The states over each conversation.

        Raises:
            StageError: the last state is not what the head reads (FeatureMismatch), told by the first conversation.
        """
        return map(self._states, conversations)

    def converse(self, sampling: Sampling) -> "_OneByOne[AskerT]":
        """One dialogue after the other."""
        return _OneByOne(self._answer, sampling)

    def close(self) -> None:
        """It started nothing."""

    @torch.no_grad()
    def _answer(self, prompt: Sequence[int], room: int, seed: int, sampling: Sampling) -> Answer:
        ids = torch.tensor([list(prompt)], device=self._model.device)
        drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        how = _GENERATION(
            max_new_tokens=room,
            eos_token_id=list(sampling.end_tokens) or None,
            pad_token_id=0,
            **(drawn if sampling.temperature else {"do_sample": False}) | sampling.of_target,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            produced = self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=how)
        answer = produced[0, len(prompt) :].tolist()
        return Answer(answer, ended=bool(answer) and answer[-1] in sampling.end_tokens)

    @torch.no_grad()
    def _states(self, input_ids: Sequence[int]) -> States:
        if not self._head_tried:
            self._try_head(input_ids[:_TRIED_TOKENS])
            self._head_tried = True
        output = self._forward(input_ids, **({"logits_to_keep": 1} if self._short_logits else {}))
        states = output.hidden_states
        head = self._model.get_output_embeddings()
        teaching = teach(self._teacher, states[-1][0], head, self.vocabulary_size)
        outputs = [*states[:-1], *self._before_norm]
        return States(
            hidden=torch.cat([outputs[index][0] for index in self._taken], dim=-1).cpu(),
            teaching=mapped(teaching, torch.Tensor.cpu),
        )

    def _keep(self, _layer: Any, _given: Any, output: Any) -> None:
        self._before_norm = [output[0] if isinstance(output, tuple) else output]

    def _forward(self, input_ids: Sequence[int], **options: Any) -> Any:
        ids = torch.tensor([list(input_ids)], device=self._model.device)
        return self._model(input_ids=ids, output_hidden_states=True, use_cache=False, return_dict=True, **options)

    def _try_head(self, input_ids: Sequence[int]) -> None:
        """Whether the last state is the one after the final norm: then the head makes the logits of it."""
        output = self._forward(input_ids)
        made = self._model.get_output_embeddings()(output.hidden_states[-1]).float()
        logits = output.logits.float()
        scale = logits.abs().max().clamp(min=1e-6)
        difference = float((made - logits).abs().max() / scale)
        if not difference < 1e-2:
            raise StageError(
                ExitCode.REFUSED,
                Reason.FEATURE_MISMATCH,
                f"{type(self._model).__name__}: the last hidden state times lm_head differs from the logits by "
                f"{difference:.1%} of the largest: it was taken before the final norm, or the logits are changed after the "
                "head. A draft cannot be trained on it",
            )


class _OneByOne(Generic[AskerT]):
    """Answers when it is waited for: one answer at a time."""

    def __init__(self, answer: Callable[[Sequence[int], int, int, Sampling], Answer], sampling: Sampling) -> None:
        self._answer = answer
        self._sampling = sampling
        self._asked: deque[AskerT] = deque()

    def ask(self, dialogues: Sequence[AskerT]) -> None:
        self._asked.extend(dialogues)

    def finished(self, seconds: float) -> list[AskerT]:
        if not seconds or not self._asked:
            return []
        dialogue = self._asked[0]
        if dialogue.prompt is not None:
            seed = dialogue.seed(self._sampling.seed)
            dialogue.take(self._answer(dialogue.prompt, dialogue.room, seed, self._sampling))
        return [self._asked.popleft()] if dialogue.prompt is None else []

    def close(self) -> None:
        self._asked.clear()


def _dtype(arguments: Sequence[str]) -> torch.dtype | str:
    """The dtype that the server is told, or the checkpoint's own."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    named = words[words.index("--dtype") + 1] if "--dtype" in words[:-1] else "auto"
    return _DTYPES.get(named, "auto")


def _unreadable(target: Path, what: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, f"target.model: {target} {what}")
