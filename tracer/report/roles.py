"""Every role, the step of the flow it belongs to, and its one sentence; reads nothing and parses nothing."""

from dataclasses import dataclass
from enum import Enum

from auxtap.tracer.report.entries import UNKNOWN


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
    _site(
        "setter_read", Step.SELECTION, "The setter of an inner model is taken as a value, to be called or handed out."
    ),
    _site(
        "configure",
        Step.SELECTION,
        "The function of the runner that switches capture on, before any graph is recorded.",
    ),
    _site("configure_call", Step.SELECTION, "The runner calls the function that switches capture on."),
    _site("flag_init", Step.SELECTION, "The capture switch gets its first value."),
    _site("flag_set", Step.SELECTION, "The capture switch is turned on or off."),
    _site(
        "flag_read",
        Step.SELECTION,
        "The capture switch is read from a draft model's configuration or from a model that may lack it.",
    ),
    _site("flag_copy", Step.SELECTION, "The capture switch is copied from, or to, another object."),
    _site("flag_property", Step.SELECTION, "The capture switch is worked out whenever it is read."),
    _site("flag_test", Step.HAND_OVER, "Code that runs only when the capture switch is on."),
    _site("pass_in", Step.SELECTION, "The switch or the layer ids are given to a function as an argument."),
    _site("ids_field", Step.SELECTION, "The layer ids are an argument of the server or a field of its settings."),
    _site(
        "ids_read",
        Step.SELECTION,
        "The layer ids are read from a draft model's configuration or from the server's settings.",
    ),
    _site("ids_set", Step.SELECTION, "The layer ids are taken over from another list."),
    _site("ids_test", Step.SELECTION, "Asks whether layer ids were given."),
    _site("ids_default", Step.SELECTION, "No layer ids were given, so the setter will use its defaults."),
    _site("layers_init", Step.SELECTION, "The list of layers to capture begins empty: nothing is captured."),
    _site(
        "layers_set", Step.SELECTION, "The list of layers to capture gets its content; `offset` is added to each id."
    ),
    _site("layers_loop", Step.SELECTION, "Walks over the layers to capture, to mark each of them."),
    _site("layers_read", Step.CAPTURE, "The list of layers to capture is taken under a local name or returned."),
    _site("layers_empty_test", Step.CAPTURE, "Asks whether any layers are to be captured."),
    _site("layers_count", Step.CAPTURE, "Counts the layers to capture."),
    _site("layers_pass", Step.SELECTION, "The list of layers to capture is given to a function as an argument."),
    _site("layer_mark", Step.SELECTION, "Marks one layer as captured, for capture inside the layer."),
    _site("setting_init", Step.SELECTION, "Another attribute that a setter assigns gets its first value."),
    _site("setting_set", Step.SELECTION, "A setter assigns an attribute beside the list and the switch."),
    _site("setting_use", Step.CAPTURE, "An attribute that a setter assigns decides what is done here."),
    _site("collector_class", Step.CAPTURE, "A class that collects captured states."),
    _site("collector_type", Step.CAPTURE, "A class of collectors in an annotation or in the definition of a type."),
    _site(
        "accumulator_init",
        Step.CAPTURE,
        "What collects the states of one forward begins empty: a list, or a packed tensor of known width.",
    ),
    _site("layer_test", Step.CAPTURE, "Asks whether this layer is to be captured."),
    _site("state_value", Step.CAPTURE, "One state is worked out before it is kept."),
    _site("transform", Step.CAPTURE, "One state is replaced by what a function makes of it, before it is kept."),
    _site("gather", Step.CAPTURE, "One state, or all of them, is gathered from other ranks."),
    _site("append", Step.CAPTURE, "One state joins the list: this is where a state is captured."),
    _site("append_in_place", Step.CAPTURE, "A kernel writes one state straight into its place in the packed tensor."),
    _site("collector_hand_in", Step.CAPTURE, "The list goes into a layer, or deeper, which appends to it itself."),
    _site(
        "boundary_hand_in",
        Step.CAPTURE,
        "The collector's own method goes into a layer, whose boundary code calls it with the state.",
    ),
    _site("return_state", Step.CAPTURE, "A helper returns one state that is ready to be kept."),
    _site("parameter", Step.CAPTURE, "The states, their list, or the layer list come in as a parameter."),
    _site("none_test", Step.CAPTURE, "Asks whether there are captured states, or a list to fill, at all."),
    _site("empty_test", Step.EXIT, "Asks whether anything was captured; if not, a plain tensor is returned, no pair."),
    _site("stage_carry", Step.EXIT, "What this stage captured goes to the next stage along with its output."),
    _site("return_pair", Step.EXIT, "The backbone returns the final state together with the captured ones."),
    _site("pair_value", Step.EXIT, "The final state and the captured ones are put together as one value."),
    _site("return_states", Step.CONSUMER, "A function returns the captured states alone."),
    _site("default", Step.HAND_OVER, "No captured states unless the switch is on."),
    _site("unpack", Step.HAND_OVER, "The pair from the backbone is taken apart; it fails when nothing was captured."),
    _site("hand_over", Step.HAND_OVER, "The captured states are given to the logits processor."),
    _site("pass_on", Step.CONSUMER, "The captured states go on to another method of the same object."),
    _site(
        "form_test",
        Step.CONSUMER,
        "Asks in which form the states come: one packed tensor, or a list, and of what kind.",
    ),
    _site("count", Step.CONSUMER, "How many states there are, from the length of the list or the width of the tensor."),
    _site(
        "expected_init",
        Step.CONSUMER,
        "How many states the model must capture, when the server's settings name the layers.",
    ),
    _site("expected_read", Step.CONSUMER, "The number of states that must be there is taken for a comparison."),
    _site("expected_test", Step.CONSUMER, "Asks whether the number of states is to be checked."),
    _site("prune", Step.CONSUMER, "Picks, from each captured state, the rows that are kept."),
    _site("pack_function", Step.CONSUMER, "The function that joins captured states into one tensor."),
    _site("join", Step.CONSUMER, "The captured states are joined into one tensor along the hidden dimension."),
    _site("tapped", Step.CONSUMER, "A line of auxtap's own patch hands the captured states to its tap."),
    _site(
        "store",
        Step.CONSUMER,
        "The captured states go on under another name, towards what the logits processor returns.",
    ),
    _site("state_field", Step.CONSUMER, "A field of a batch, a result or a buffer that can hold the captured states."),
    _site("buffer_init", Step.CONSUMER, "A buffer that captured states are written to in a recorded graph is made."),
    _branch(
        "module_placement", Step.LAYOUT, "A module lives on the first or last stage only; others have a placeholder."
    ),
    _branch("weight_tying", Step.LAYOUT, "The head on the last stage gets its weight from the embedding on the first."),
    _branch("weight_skip", Step.LAYOUT, "A weight that belongs to another stage is not loaded."),
    _branch("weight_expected", Step.LAYOUT, "Which weights must have been loaded depends on the stage."),
    _branch("weight_access", Step.LAYOUT, "The embedding or the head is read or replaced on the stage that has it."),
    _branch("single_stage_assert", Step.LAYOUT, "The class or the code runs on one stage only."),
    _branch("other_stage_assert", Step.LAYOUT, "The code runs on the other stages only."),
    _branch("layout_assert", Step.LAYOUT, "Checks how the layers are split into stages."),
    _branch("selection_gate", Step.SELECTION, "The setter does nothing on any stage but the last."),
    _branch("stage_entry", Step.ENTRY, "The first stage starts from tokens, later ones from what the one before sent."),
    _branch("input_check", Step.ENTRY, "The inputs that only one kind of stage gets are checked."),
    _branch("first_stage_only", Step.ENTRY, "Something that only the first stage computes."),
    _branch("capture_gate", Step.CAPTURE, "Something joins the captured states on this kind of stage only."),
    _branch("stage_exit", Step.EXIT, "A stage that is not the last returns here, with or without the captured states."),
    _branch("last_stage_only", Step.EXIT, "Something that only the last stage computes."),
    _branch("logits_gate", Step.HAND_OVER, "Only the last stage reaches the logits processor."),
    _branch("result_sync", Step.RUNTIME, "Only the last stage has results to bring back into their unpadded shape."),
    _branch("runner_gate", Step.RUNTIME, "The worker runs the model on every stage but has logits on the last only."),
    _branch(
        "runner_result",
        Step.RUNTIME,
        "The worker's result holds logits and tokens on the last stage, tensors for the next one elsewhere.",
    ),
    _branch(
        "verify_gate",
        Step.RUNTIME,
        "In a verify round of speculative decoding the stages before the last do only their own part.",
    ),
    _branch("resource_gate", Step.RUNTIME, "Something that only one stage has is taken there, and None elsewhere."),
    _branch(
        "stage_transport", Step.RUNTIME, "Requests, results or tensors are sent to, or received from, another stage."
    ),
    _branch("stage_answer", Step.RUNTIME, "A helper answers yes or no by the stage."),
    _branch("stage_guard", Step.RUNTIME, "The rest of the function is for other stages or ranks."),
    _branch("stage_value", Step.RUNTIME, "The answer is kept as a value, for a branch elsewhere."),
    _branch("definition", Step.RUNTIME, "The property itself."),
)
ROLES: dict[str, Role] = {role.name: role for role in _ALL}
UNKNOWN_ROLE = Role(UNKNOWN, Step.UNKNOWN, False, "The tracer does not recognise this shape; look at it yourself.")


def role_of(name: str) -> Role:
    """Return the role of that name, or the unknown one."""
    return ROLES.get(name, UNKNOWN_ROLE)
