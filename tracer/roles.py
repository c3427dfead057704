"""Every role, the step of the flow it belongs to, and its one sentence; reads nothing and parses nothing."""

from dataclasses import dataclass
from enum import Enum

from auxtap.tracer.report import UNKNOWN


class Step(Enum):
    """The steps of the flow, in the order in which a state meets them."""

    SELECTION = "Selection: which layers, and the switch"
    LAYOUT = "Stages: what each one owns"
    ENTRY = "Entry: where a stage begins"
    CAPTURE = "Capture: the accumulator and what goes in"
    EXIT = "Exit: what leaves the backbone"
    HAND_OVER = "Hand-over: to the logits processor"
    CONSUMER = "Consumer: what becomes of the states"
    RUNTIME = "Runtime: what goes from stage to stage"
    UNKNOWN = "Unknown: not recognised"


@dataclass(frozen=True)
class Role:
    """A role of a capture site (`is_branch` false) or of a stage branch."""

    name: str
    step: Step
    is_branch: bool
    explanation: str


def _site(name: str, step: Step, explanation: str) -> Role:
    return Role(name, step, False, explanation)


def _branch(name: str, step: Step, explanation: str) -> Role:
    return Role(name, step, True, explanation)


_ALL = (
    _site("setter", Step.SELECTION, "The method that chooses the layers to capture; it is called once, after loading."),
    _site("setter_call", Step.SELECTION, "A setter is called, by the runner or by an outer model that passes it on."),
    _site("setter_test", Step.SELECTION, "Asks whether an inner model has a setter before calling it."),
    _site("flag_init", Step.SELECTION, "The capture switch gets its first value."),
    _site("flag_set", Step.SELECTION, "The capture switch is turned on or off."),
    _site("flag_read", Step.SELECTION, "The capture switch is read from a draft model's configuration."),
    _site("flag_test", Step.HAND_OVER, "Code that runs only when the capture switch is on."),
    _site("ids_read", Step.SELECTION, "The layer ids are read from a draft model's configuration."),
    _site("ids_default", Step.SELECTION, "No layer ids were given, so the setter will use its defaults."),
    _site("layers_init", Step.SELECTION, "The list of layers to capture begins empty: nothing is captured."),
    _site(
        "layers_set", Step.SELECTION, "The list of layers to capture gets its content; `offset` is added to each id."
    ),
    _site("layers_loop", Step.SELECTION, "Walks over the layers to capture, to mark each of them."),
    _site("layer_mark", Step.SELECTION, "Marks one layer as captured, for capture inside the layer."),
    _site("accumulator_init", Step.CAPTURE, "The list that collects the states of one forward begins empty."),
    _site("layer_test", Step.CAPTURE, "Asks whether this layer is to be captured."),
    _site("gather", Step.CAPTURE, "One state is gathered from other ranks before it is kept."),
    _site("append", Step.CAPTURE, "One state joins the list: this is where a state is captured."),
    _site("collector_hand_in", Step.CAPTURE, "The list goes into a layer, or deeper, which appends to it itself."),
    _site("parameter", Step.CAPTURE, "The states, their list, or the layer list come in as a parameter."),
    _site("none_test", Step.CAPTURE, "Asks whether there are captured states, or a list to fill, at all."),
    _site("empty_test", Step.EXIT, "Asks whether anything was captured; if not, a plain tensor is returned, no pair."),
    _site("return_pair", Step.EXIT, "The backbone returns the final state together with the captured ones."),
    _site("default", Step.HAND_OVER, "No captured states unless the switch is on."),
    _site("unpack", Step.HAND_OVER, "The pair from the backbone is taken apart; it fails when nothing was captured."),
    _site("hand_over", Step.HAND_OVER, "The captured states are given to the logits processor."),
    _site("pass_on", Step.CONSUMER, "The captured states go on to another method of the same object."),
    _site("prune", Step.CONSUMER, "Picks, from each captured state, the rows that are kept."),
    _site("join", Step.CONSUMER, "The captured states are joined into one tensor along the hidden dimension."),
    _site("store", Step.CONSUMER, "The captured states become what the logits processor returns to the scheduler."),
    _branch(
        "module_placement", Step.LAYOUT, "A module lives on the first or last stage only; others have a placeholder."
    ),
    _branch("weight_tying", Step.LAYOUT, "The head on the last stage gets its weight from the embedding on the first."),
    _branch("weight_skip", Step.LAYOUT, "A weight that belongs to another stage is not loaded."),
    _branch("single_stage_assert", Step.LAYOUT, "The class runs on a single stage only."),
    _branch("layout_assert", Step.LAYOUT, "Checks how the layers are split into stages."),
    _branch("selection_gate", Step.SELECTION, "The setter does nothing on any stage but the last."),
    _branch("stage_entry", Step.ENTRY, "The first stage starts from tokens, later ones from what the one before sent."),
    _branch("first_stage_only", Step.ENTRY, "Something that only the first stage computes."),
    _branch("stage_exit", Step.EXIT, "A stage that is not the last returns here, with or without the captured states."),
    _branch("last_stage_only", Step.EXIT, "Something that only the last stage computes."),
    _branch("logits_gate", Step.HAND_OVER, "Only the last stage reaches the logits processor."),
    _branch("result_sync", Step.RUNTIME, "Only the last stage has results to bring back into their unpadded shape."),
    _branch("runner_gate", Step.RUNTIME, "The worker runs the model on every stage but has logits on the last only."),
    _branch(
        "stage_transport", Step.RUNTIME, "Requests, results or tensors are sent to, or received from, another stage."
    ),
    _branch("stage_value", Step.RUNTIME, "The answer is kept as a value, for a branch elsewhere."),
    _branch("definition", Step.RUNTIME, "The property itself."),
)
ROLES: dict[str, Role] = {role.name: role for role in _ALL}
UNKNOWN_ROLE = Role(UNKNOWN, Step.UNKNOWN, False, "The tracer does not recognise this shape; look at it yourself.")


def role_of(name: str) -> Role:
    """Return the role of that name, or the unknown one."""
    return ROLES.get(name, UNKNOWN_ROLE)
