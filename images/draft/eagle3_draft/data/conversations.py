"""Reading conversations: JSON Lines, one ``{"messages": [{"role": ..., "content": ...}, ...]}`` a line (``forms`` has others).

A conversation's digest, sha256 over the canonical JSON of its messages (and tools), decides what a shuffle would decide elsewhere, so
that it does not depend on the order of the lines: where the conversation stands in the order, and with it whether ``maxSamples``
takes it. Whether it is held out another digest says, of what it opens with (``openings``).

Where the target is to answer itself, the data's answers are not looked at: two conversations that differ in nothing else
are then one. Nor is what follows a tool's result, for it answers a call of the data's.

A line that is no conversation refuses the file, which may be broken as a whole; a conversation that is one, of a kind from which
nothing can be learned here (images, calls that are not clear), is left out and counted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, overload

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode
from eagle3_draft.data import forms, openings
from eagle3_draft.data.tools import Tool, listed
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest

ROLES = ("system", "user", "assistant", "tool")

#: Bytes of a line. The longest conversations of a million tokens are shorter.
LINE_LIMIT = 64 * 1024 * 1024

#: A low estimate of the UTF-8 bytes of a token, and no bound: English has more than 4, code about 3, Chinese 3 to 5, and rare
#: characters 1. Extract counts tokens before it stores any.
BYTES_PER_TOKEN = 3

#: Tokens that a chat template puts around a message, at most.
TOKENS_AROUND_MESSAGE = 8

#: Tokens in which a chat template says how tools are called, at most.
TOKENS_AROUND_TOOLS = 256

DUPLICATE = "duplicate"
CALLS_UNCLEAR = "tool calls that are not clear"
TOOLS_UNCLEAR = "tools that are no functions"
NOT_TEXT = "content that is not text"
REASONING_NOT_TEXT = "reasoning that is not text"
NO_CONTENT = "answer without content"
LATE_SYSTEM = "system message that is not the first"

#: Of OpenAI's messages, beside those that are taken; and why a conversation with one is left out.
LEFT_OUT = {"function": CALLS_UNCLEAR, "developer": "message of a developer"}

#: What servers and data sets call an answer's reasoning; the first is SGLang's word, and the one that is used here.
REASONING = ("reasoning_content", "reasoning", "thinking")

#: Around it where it is in an answer's text.
REASONING_BEGINS, REASONING_ENDS = "<think>", "</think>"

#: Who says what a call resulted in, the second in OpenAI's former form.
_RESULTS = ("tool", "function")

#: As SGLang's server hands it to the chat template: ``role`` and ``content``; of a tool ``tool_call_id`` and ``name``, of an assistant
#: ``reasoning_content`` and ``tool_calls``, where the data has them. The arguments of a call are an object, not its text.
Message = dict[str, Any]


class UnusableError(Exception):
    """A conversation that cannot be learned from; its text is why."""


@dataclass(frozen=True)
class Reading:
    """How a file is read.

    Attributes:
        field: of the object, that names the file.
        answers: what the assistant says is taken; else only what it is asked.
        questions_last: each conversation must end with a question.
    """

    field: str = "data.conversations"
    answers: bool = True
    questions_last: bool = False


AS_IT_STANDS = Reading()
QUESTIONS = Reading(answers=False)
PROMPTS = Reading("data.prompts", answers=False, questions_last=True)
DATASET = Reading("data.dataset")
DATASET_QUESTIONS = Reading("data.dataset", answers=False)


def uses_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    """Whether tools are offered in a conversation, or called."""
    return bool(tools) or any(message["role"] == "tool" or "tool_calls" in message for message in messages)


@dataclass(frozen=True)
class Conversation:
    """One conversation: its messages, their digest, and the tools that the assistant may call in it."""

    messages: list[Message]
    digest: bytes
    tools: list[Tool] = field(default_factory=list)

    @property
    def uses_tools(self) -> bool:
        """Whether tools are offered in it, or called."""
        return uses_tools(self.messages, self.tools)

    @property
    def opening(self) -> "Conversation":
        """Up to and with the first question."""
        first = next((i for i, message in enumerate(self.messages) if message["role"] == "user"), len(self.messages))
        return Conversation(self.messages[: first + 1], self.digest, self.tools)


@dataclass(frozen=True, slots=True)
class _Line:
    digest: bytes
    asked: bytes
    offset: int
    tokens: int
    questions: int


class Conversations(Sequence[Conversation]):
    """The conversations of a file, in an order that their content decides.

    Only digests and positions are held in memory; messages are read from the file when they are asked for.

    Attributes:
        path: of the file.
        reading: how it was read.
        sha256: of the file.
        dropped: how many were left out, by why.
    """

    def __init__(
        self,
        path: Path,
        reading: Reading,
        lines: list[_Line],
        sha256: str,
        dropped: dict[str, int],
        spelled_out: IO[bytes] | None,
    ) -> None:
        self.path = path
        self.reading = reading
        self.sha256 = sha256
        self.dropped = dropped
        self._lines = lines
        # Held open: it goes with this object
        self._spelled_out = spelled_out
        self._source = Path(spelled_out.name) if spelled_out else path

    @classmethod
    def of(cls, data: DataConfig) -> "Conversations":
        """Those of an object's data.

        Raises:
            StageError: as of ``read``.
        """
        if data.prompts is not None:
            return cls.read(Path(data.prompts), data.max_samples, PROMPTS)
        if data.dataset is not None:
            reading = DATASET if data.regenerate is None else DATASET_QUESTIONS
            return cls.read(Path(data.dataset), data.max_samples, reading)
        reading = AS_IT_STANDS if data.regenerate is None else QUESTIONS
        return cls.read(Path(data.conversations or ""), data.max_samples, reading)

    @classmethod
    def read(cls, path: Path, max_samples: int | None = None, reading: Reading = AS_IT_STANDS) -> "Conversations":
        """Read and check a whole file. A conversation that occurs twice is taken once; one that cannot be learned from is not.

        Args:
            path: of the file.
            max_samples: take at most so many.
            reading: how.

        Raises:
            StageError: the file or a line of it cannot be read; the message names the line (DataUnreadable).
        """
        found: dict[bytes, _Line] = {}
        whole = hashlib.sha256()
        dropped: Counter[str] = Counter()
        spelled_out = _spelled_out(path, reading)
        for number, offset, text in _lines(path, Path(spelled_out.name) if spelled_out else path, reading):
            whole.update(text)
            if not text.strip():
                continue
            try:
                conversation = _parse(path, number, text, reading)
            except UnusableError as why:
                dropped[str(why)] += 1
                continue
            if conversation.digest in found:
                dropped[DUPLICATE] += 1
            else:
                found[conversation.digest] = _line(conversation, offset)
        lines = sorted(found.values(), key=lambda line: line.digest[16:])[:max_samples]
        digest = file_digest(path) if spelled_out else whole.hexdigest()
        return cls(path, reading, lines, digest, dict(dropped), spelled_out)

    def held_out(self, share: float) -> list[bool]:
        """Which conversations are kept out of training, in order; at least one if there are any."""
        return self.openings.held_out(share)

    @cached_property
    def openings(self) -> openings.Openings:
        """What they open with."""
        return openings.Openings([line.asked for line in self._lines])

    def expected_tokens(self, max_length: int, answer_tokens: int = 0) -> int:
        """An estimate of their tokens that is rather too high, without a tokenizer.

        Args:
            max_length: tokens after which a conversation is cut.
            answer_tokens: at most so many will come to each question.
        """
        return sum(min(max_length, line.tokens + line.questions * answer_tokens) for line in self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Conversation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Conversation]: ...
    def __getitem__(self, index: int | slice) -> Conversation | list[Conversation]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        line = self._lines[index]
        with self._source.open("rb") as file:
            file.seek(line.offset)
            text = file.readline(LINE_LIMIT + 1)
        with suppress(UnusableError):
            conversation = _parse(self.path, None, text, self.reading)
            if conversation.digest == line.digest:
                return conversation
        raise _unreadable(self.path, None, self.reading, "the file was changed while it was read")


def _spelled_out(path: Path, reading: Reading) -> IO[bytes] | None:
    """A file of another form as JSON Lines; None where it is that already, or cannot be read, which is told later."""
    try:
        other = forms.is_parquet(path)
    except OSError:
        return None
    try:
        return forms.spelled_out(path, prompts=not reading.answers) if other else None
    except forms.FormError as error:
        raise _unreadable(path, None, reading, str(error)) from None


def _lines(path: Path, source: Path, reading: Reading) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line of what stands for the file."""
    try:
        with source.open("rb") as file:
            number, offset = 0, 0
            while text := file.readline(LINE_LIMIT + 1):
                number += 1
                if len(text) > LINE_LIMIT:
                    raise _unreadable(path, number, reading, f"longer than {LINE_LIMIT} bytes")
                yield number, offset, text
                offset += len(text)
    except FileNotFoundError:
        raise _unreadable(
            path, None, reading, "there is no such file in this pod; is its volume in placement.volumes?"
        ) from None
    except IsADirectoryError:
        raise _unreadable(path, None, reading, "it is a folder; name one JSON Lines file") from None
    except OSError as error:
        raise _unreadable(path, None, reading, str(error.strerror or error)) from None


def _line(conversation: Conversation, offset: int) -> _Line:
    messages, digest = conversation.messages, conversation.digest
    asked = openings.digests(messages) or digest[: openings.DIGEST_BYTES]
    questions = sum(message["role"] == "user" for message in messages)
    return _Line(digest, asked, offset, _tokens(conversation), questions)


def _parse(path: Path, number: int | None, text: bytes, reading: Reading) -> Conversation:
    """The conversation in a line.

    Raises:
        StageError: it is none (DataUnreadable).
        UnusableError: it is one that cannot be learned from.
    """
    try:
        value = forms.as_messages(json.loads(text), prompts=not reading.answers)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, number, reading, f"not JSON: {error}") from None
    problem = _problem(value, reading)
    if problem is not None:
        raise _unreadable(path, number, reading, problem)
    taken = value["messages"] if reading.answers else _asked(value["messages"])
    obstacle = _obstacle(taken)
    if obstacle is not None:
        raise UnusableError(obstacle)
    if reading.questions_last and value["messages"][-1]["role"] not in ("user", *_RESULTS):
        belongs = "the last message is not the user's; with its own answers it belongs into data.conversations"
        raise _unreadable(path, number, reading, belongs)
    messages = [_message(message) for message in taken]
    try:
        offered = listed(value.get("tools"))
    except (ValueError, RecursionError):
        raise UnusableError(TOOLS_UNCLEAR) from None
    # Of messages alone where there are no tools: what it was before there could be any
    hashed = {"messages": messages, "tools": offered} if offered else messages
    canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return Conversation(messages, hashlib.sha256(canonical.encode()).digest(), offered)
    except UnicodeEncodeError:
        what = "a content holds half of a surrogate pair, which is not a character"
        raise _unreadable(path, number, reading, what) from None


def _asked(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What others than the assistant say, up to the first result of a call."""
    before = takewhile(lambda message: message["role"] not in _RESULTS, messages)
    return [message for message in before if message["role"] != "assistant"]


def _message(message: dict[str, Any]) -> Message:
    content = message.get("content") or ""
    # As SGLang joins them for a template that takes a text
    text = content if isinstance(content, str) else " ".join(part["text"] for part in content)
    made: Message = {"role": message["role"], "content": text}
    if message["role"] == "tool":
        made |= {name: message[name] for name in ("tool_call_id", "name") if isinstance(message.get(name), str)}
    if message["role"] == "assistant" and (reasoning := _reasoning(message)):
        made[REASONING[0]] = reasoning
    if message["role"] == "assistant" and message.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return made


def _reasoning(message: dict[str, Any]) -> Any:
    return next((message[name] for name in REASONING if message.get(name)), None)


def _call(call: Any) -> dict[str, Any]:
    """A call with its arguments as an object.

    Raises:
        UnusableError: a server would refuse it.
    """
    function = call.get("function") if isinstance(call, dict) and call.get("type", "function") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise UnusableError(CALLS_UNCLEAR)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict) or not isinstance(call.get("id"), str | None):
        raise UnusableError(CALLS_UNCLEAR)
    named = {"name": function["name"], "arguments": arguments}
    # With the field of streamed ones, for that is what a template sees that shows a call whole
    return {"id": call.get("id"), "index": None, "type": "function", "function": named}


def _problem(value: Any, reading: Reading) -> str | None:
    """Why a line's value is no conversation."""
    if not isinstance(value, dict):
        return 'it is not an object; one conversation is {"messages": [...]}'
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        or_prompt = " and 'prompt' too" if not reading.answers else ""
        return f"'messages' is missing or no list with at least one message{or_prompt}"
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, dict):
            return f"{where} is not an object"
        role = message.get("role")
        if role not in (*ROLES, *LEFT_OUT):
            return f"{where}.role is {role!r}, not one of {', '.join(ROLES)}"
        if role not in (*LEFT_OUT, "tool") and (problem := _content_problem(message)) is not None:
            return f"{where}.content{problem}"
    return None


def _content_problem(message: dict[str, Any]) -> str | None:
    """What is wrong with a message's content, to be said after that word."""
    content = message.get("content")
    if content is None and message["role"] in ("assistant", "tool"):
        return None
    if not isinstance(content, list) or not content:
        return None if isinstance(content, str) else " is neither a string nor a list of parts"
    for position, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return f"[{position}] is not an object with a type"
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            return f"[{position}].text is not a string"
    return None


def _obstacle(messages: Sequence[dict[str, Any]]) -> str | None:
    """Why nothing can be learned from a conversation, though it is one."""
    called = False
    for position, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role in LEFT_OUT:
            return LEFT_OUT[role]
        if message.get("function_call") or (role == "tool" and (not called or _content_problem(message))):
            return CALLS_UNCLEAR
        called = called if role == "tool" else _calls(message)
        if role == "system" and position > 0:
            return LATE_SYSTEM
        if isinstance(content, list) and any(part["type"] != "text" for part in content):
            return NOT_TEXT
        if role == "assistant" and content is None and not _calls(message):
            return NO_CONTENT  # a refusal, or reasoning that was cut
        if role == "assistant" and not isinstance(_reasoning(message), str | None):
            return REASONING_NOT_TEXT
    return None


def _calls(message: dict[str, Any]) -> bool:
    """Whether the assistant calls a tool, by either of OpenAI's names."""
    return message["role"] == "assistant" and bool(message.get("tool_calls") or message.get("function_call"))


def _tokens(conversation: Conversation) -> int:
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for message in conversation.messages
        for name, value in message.items()
        if name != "role"
    ]
    around = TOKENS_AROUND_MESSAGE * len(conversation.messages)
    if conversation.tools:
        texts.append(json.dumps(conversation.tools, ensure_ascii=False))
        around += TOKENS_AROUND_TOOLS
    return sum(-(-len(text.encode()) // BYTES_PER_TOKEN) for text in texts) + around


def _unreadable(path: Path, number: int | None, reading: Reading, what: str) -> StageError:
    where = f"{path}, line {number}" if number is not None else str(path)
    return StageError(ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, f"{reading.field}: {where}: {what}")
