"""Turn a record into a conversation: OpenAI's `messages` or ShareGPT's `conversations`, roles in their order."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
DEVELOPER = "developer"
# What is read of a record; other fields are its owner's affair.
RECORD_FIELDS = frozenset(
    {"id", "messages", "conversations", "tools", "system", "input_ids", "loss_mask", "assistant_masks", "labels"}
)
_ROLES = frozenset({SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL})
_SHAREGPT_ROLES = {
    "human": USER, "user": USER,
    "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bing": ASSISTANT, "bard": ASSISTANT, "model": ASSISTANT,
    "assistant": ASSISTANT, "function_call": ASSISTANT, "system": SYSTEM,
    "tool": TOOL, "observation": TOOL, "function_response": TOOL,
}  # fmt: skip
# After which roles a turn may come; None is the beginning.
_MAY_FOLLOW: dict[str, frozenset[str | None]] = {
    SYSTEM: frozenset({None, SYSTEM, DEVELOPER}),
    DEVELOPER: frozenset({None, SYSTEM, DEVELOPER}),
    USER: frozenset({None, SYSTEM, DEVELOPER, ASSISTANT}),
    ASSISTANT: frozenset({USER, TOOL}),
    TOOL: frozenset({ASSISTANT, TOOL}),
}


@dataclass(frozen=True)
class Message:
    """One turn; `extras` are the further fields that a chat template may read, such as `tool_calls`.

    A turn of the assistant that is not `trained` is context: its tokens stay out of the mask.
    """

    role: str
    content: str | None
    extras: Mapping[str, Any] = field(default_factory=dict, hash=False)
    trained: bool = True

    def to_template(self, *, parsed: bool = True) -> dict[str, Any]:
        """Return the turn as chat templates know it; arguments of tool calls that are JSON texts as objects or not.

        Most templates expect objects, and SGLang gives them (0.5.9, srt/entrypoints/openai/serving_chat.py,
        OpenAIServingChat._apply_jinja_template); some join texts.
        """
        turn = {"role": self.role, "content": self.content, **self.extras}
        if parsed and "tool_calls" in turn:
            turn["tool_calls"] = [_parsed(call) for call in turn["tool_calls"]]
        return turn

    @property
    def has_text_arguments(self) -> bool:
        """Whether a tool is called with arguments that are a text."""
        return any(isinstance(c["function"].get("arguments"), str) for c in self.extras.get("tool_calls", ()))


@dataclass(frozen=True)
class Conversation:
    """The turns of a record, and the schemas of the tools that they may call."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


def is_conversation(record: Mapping[str, Any]) -> bool:
    """Tell whether a record holds turns, and not token ids."""
    return any(record.get(key) is not None for key in ("messages", "conversations"))


def read_conversation(record: Mapping[str, Any]) -> Conversation:
    """Return the conversation of a record.

    Raises:
        ValueError: it holds none, or roles come in an order in which nobody speaks; names the turn.
    """
    if record.get("messages") is not None:
        if record.get("conversations") is not None:
            raise ValueError("has both messages and conversations")
        messages = [_openai_turn(turn, number) for number, turn in _turns(record["messages"], "messages")]
    else:
        messages = [_sharegpt_turn(turn, number) for number, turn in _turns(record["conversations"], "conversations")]
    if isinstance(record.get("system"), str) and record["system"].strip():
        messages.insert(0, Message(SYSTEM, record["system"]))
    _check_order(messages)
    tools = _read_tools(record.get("tools"))
    for number, message in enumerate(messages, start=1):
        _check_text(message.to_template(parsed=False), f"turn {number} ({message.role})")
    _check_text(tools, "tools")
    return Conversation(tuple(messages), tools)


def _check_text(value: object, what: str) -> None:
    """Refuse what JSON can spell and no tokenizer can read: half of a pair of surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds a lone surrogate, which is no text") from None


def _turns(value: object, key: str) -> list[tuple[int, Mapping[str, Any]]]:
    if isinstance(value, dict):
        value = _in_rows(value)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} is not a list of turns")
    for number, turn in enumerate(value, start=1):
        if not isinstance(turn, dict):
            raise ValueError(f"turn {number} of {key} is not an object")
    return list(enumerate(value, start=1))


def _in_rows(columns: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return turns that stand column by column, as `datasets` keeps a sequence of objects; None when they do not."""
    if not columns or not all(isinstance(column, list) for column in columns.values()):
        return None
    if len({len(column) for column in columns.values()}) != 1:
        return None
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _openai_turn(turn: Mapping[str, Any], number: int) -> Message:
    role = turn.get("role")
    if not isinstance(role, str):
        raise ValueError(f"turn {number} of messages has no role")
    if role not in _ROLES:
        raise ValueError(f"turn {number} of messages has the unknown role {role!r}")
    # Columns have every field in every row, None or an empty list where a turn has it not.
    extras = {
        key: value for key, value in turn.items() if key not in ("role", "content", "weight") and value is not None
    }
    if extras.get("tool_calls") == []:
        del extras["tool_calls"]
    if "tool_calls" in extras:
        _check_tool_calls(extras["tool_calls"], number)
    weight = turn.get("weight", 1)
    if weight not in (0, 1, None):
        raise ValueError(f"turn {number} of messages has the weight {weight!r}; it is 0 or 1")
    content = _read_content(turn.get("content"), number, may_lack="tool_calls" in extras)
    return Message(role, content, extras, trained=weight != 0)


def _read_content(value: object, number: int, *, may_lack: bool) -> str | None:
    if isinstance(value, str) or (value is None and may_lack):
        return value
    if not isinstance(value, list):
        raise ValueError(f"turn {number} of messages has no content of text")
    texts = []
    for part in value:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
        if kind != "text" or not isinstance(text, str):
            raise ValueError(f"turn {number} of messages has a part of type {kind!r}; text only")
        texts.append(text)
    return "".join(texts)


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}


def _check_tool_calls(calls: object, number: int) -> None:
    if not isinstance(calls, list):
        raise ValueError(f"turn {number} of messages has tool_calls that are no list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"turn {number} of messages has a tool call without a function's name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                json.loads(arguments)
            except ValueError:
                raise ValueError(f"turn {number} of messages calls a tool with arguments that are no JSON") from None


def _sharegpt_turn(turn: Mapping[str, Any], number: int) -> Message:
    speaker, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(speaker, str) or not isinstance(value, str):
        raise ValueError(f"turn {number} of conversations has no from and value of text")
    role = _SHAREGPT_ROLES.get(speaker.strip().lower())
    if role is None:
        raise ValueError(f"turn {number} of conversations is from {speaker!r}, an unknown role")
    return Message(role, value)


def _read_tools(value: object) -> tuple[Mapping[str, Any], ...]:
    if isinstance(value, str):
        if not value.strip():
            return ()
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("tools is a text that is no JSON") from None
    if value is None:
        return ()
    if not isinstance(value, Sequence) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("tools is not a list of objects")
    return tuple(value)


def _check_order(messages: Sequence[Message]) -> None:
    before: str | None = None
    for number, message in enumerate(messages, start=1):
        if before not in _MAY_FOLLOW[message.role]:
            where = "at the beginning" if before is None else f"behind one of the {before}"
            raise ValueError(f"the roles are in a wrong order: turn {number} ({message.role}) stands {where}")
        before = message.role
    if not any(message.role == ASSISTANT and message.trained for message in messages):
        raise ValueError("has no turn of the assistant, so nothing to train on")
