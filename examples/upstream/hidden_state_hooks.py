"""Where a plugin may look at hidden states. Nothing happens until one registers an observer."""

from typing import Any, Protocol


class HiddenStateObserver(Protocol):
    """What is told to an observer; it must not change what it is given."""

    def model_loaded(self, model_runner: Any) -> None:
        """A model is loaded, before the layers of a draft model are chosen."""

    def batch_made(self, forward_batch: Any, batch: Any) -> None:
        """A forward batch was made of a batch, which knows its requests."""

    def logits_begin(
        self,
        processor: Any,
        hidden_states: Any,
        aux_hidden_states: Any,
        forward_batch: Any,
    ) -> None:
        """The last stage is done: its final states, and the captured ones if there are any."""

    def stage_exit(self, backbone: Any, aux_hidden_states: Any, forward_batch: Any) -> None:
        """A pipeline stage is about to hand on, and to drop what it captured."""


class _Hooks:
    observer: HiddenStateObserver | None = None


hooks = _Hooks()


def register_observer(observer: HiddenStateObserver) -> None:
    """Have an observer told from now on; there is at most one in a process."""
    if hooks.observer is not None:
        raise RuntimeError("another observer of hidden states is registered already")
    hooks.observer = observer
