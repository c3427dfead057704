"""The final command line of a server, each flag with where it came from and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from auxtap.core.errors import UsageError
from auxtap.node.node_profile import NodeProfile
from auxtap.serving.profile import CPU_ARGUMENTS, LOOPBACK, NO_WARMUP, check_extra_arguments, skips_warmup

AUXTAP, HAZARD, PROFILE, USER = "auxtap", "hazard", "profile", "user"
_ALIASES = {
    "--tp": "--tp-size", "--tensor-parallel-size": "--tp-size",
    "--pp": "--pp-size", "--pipeline-parallel-size": "--pp-size",
    "--dp": "--dp-size", "--data-parallel-size": "--dp-size",
}  # fmt: skip
_OWNED = ("--model-path", "--host", "--port")
_PARALLEL = {"--tp-size": "parallel.tp", "--pp-size": "parallel.pp", "--dp-size": "parallel.dp"}


@dataclass(frozen=True)
class HazardFlag:
    """A flag that a hazard of the release asks for (`auxtap patch` lists them)."""

    option: str
    hazard: str
    reason: str


@dataclass(frozen=True)
class Flag:
    """One option with its values; `origin` is auxtap, hazard, profile or user, `reason` says why or where."""

    option: str
    values: tuple[str, ...]
    origin: str
    reason: str

    @property
    def words(self) -> tuple[str, ...]:
        """The option as it stands on the command line."""
        return (self.option, *self.values)


@dataclass(frozen=True)
class FinalFlags:
    """All flags in their order; `replaced` are those of the profile that the user's took the place of."""

    flags: tuple[Flag, ...]
    replaced: tuple[Flag, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        """SGLang's arguments."""
        return tuple(word for flag in self.flags for word in flag.words)

    def value(self, option: str) -> str | None:
        """Return the value of an option, None when it is not given."""
        for flag in self.flags:
            if flag.option == option:
                return flag.values[0] if flag.values else ""
        return None

    @property
    def extra(self) -> tuple[str, ...]:
        """What profile and user ask of SGLang, the parallel sizes included."""
        chosen = (flag for flag in self.flags if flag.origin in (PROFILE, USER) and flag.option not in _OWNED)
        return tuple(word for flag in chosen for word in flag.words)


def final_flags(
    profile: NodeProfile, model_path: str, needed: Sequence[HazardFlag], user: Sequence[str], final: str = ""
) -> FinalFlags:
    """Put the command line together; `needed` is what the hazards of the release ask for.

    What the capture cannot live with is refused; `final` says which final states it takes, by default the profile's.

    Raises:
        UsageError: an argument is refused, stands twice, or contradicts the profile; says whose it is.
    """
    final = final or profile.final
    _check(profile.arguments, final, f"{profile.path}: server.arguments")
    _check(tuple(user), final, "after --")
    from_profile = _split(profile.arguments, PROFILE, f"{profile.path.name}: server.arguments")
    from_user = _split(user, USER, "given after --")
    for flag in from_profile:
        if flag.option in _PARALLEL:
            raise UsageError(
                f"{profile.path}: server.arguments holds {flag.option}", hint=f"use {_PARALLEL[flag.option]} instead"
            )
    sizes = {"--tp-size": profile.parallel.tp, "--pp-size": profile.parallel.pp, "--dp-size": profile.parallel.dp}
    from_profile = [
        *(
            Flag(option, (str(size),), PROFILE, f"{profile.path.name}: {_PARALLEL[option]}")
            for option, size in sizes.items()
            if size > 1
        ),
        *from_profile,
    ]
    chosen = {flag.option for flag in from_user}
    replaced = tuple(flag for flag in from_profile if flag.option in chosen)
    ours = [*_own(profile, model_path, needed)]
    kept = [flag for flag in [*from_profile, *from_user] if flag.origin == USER or flag.option not in chosen]
    asked = {flag.option for flag in kept}
    # What is ours comes first and gives way to the same option of profile or user, but for what is owned.
    flags = [flag for flag in ours if flag.option not in asked or flag.origin == HAZARD]
    held = {flag.option for flag in flags}
    flags += [flag for flag in kept if flag.option not in held]
    together = FinalFlags(tuple(flags), replaced)
    check_extra_arguments(together.extra, final)
    return together


def _own(profile: NodeProfile, model_path: str, needed: Sequence[HazardFlag]) -> list[Flag]:
    flags = [
        Flag("--model-path", (model_path,), PROFILE, f"{profile.path.name}: model.path"),
        Flag("--host", (LOOPBACK,), AUXTAP, "nothing but ssh's forward reaches the server"),
        Flag("--port", (str(profile.port),), PROFILE, f"{profile.path.name}: server.port"),
    ]
    if skips_warmup(profile.patch_source.removeprefix("pypi:")):
        flags.append(Flag(NO_WARMUP, (), AUXTAP, "no request but the extractor's own"))
    flags += [Flag(hazard.option, (), HAZARD, f"{hazard.hazard}: {hazard.reason}") for hazard in needed]
    if profile.cpu:
        flags += _split(CPU_ARGUMENTS, AUXTAP, f"{profile.path.name}: node.cpu = true")
    return flags


def _check(arguments: tuple[str, ...], final: str, whose: str) -> None:
    try:
        check_extra_arguments(arguments, final)
    except UsageError as error:
        raise UsageError(f"{whose}: {error.message}", hint="leave it out") from None


def _split(arguments: Sequence[str], origin: str, reason: str) -> list[Flag]:
    """Split arguments into options with their values.

    Raises:
        UsageError: a value stands before any option, or an option twice.
    """
    flags: list[Flag] = []
    for argument in arguments:
        if argument.startswith("--"):
            option, has_value, value = argument.partition("=")
            option = option.replace("_", "-")
            option = _ALIASES.get(option, option)
            if any(flag.option == option for flag in flags):
                raise UsageError(f"{reason}: {option} stands twice", hint="leave one of the two out")
            flags.append(Flag(option, (value,) if has_value else (), origin, reason))
        elif not flags:
            raise UsageError(f"{reason}: {argument!r} belongs to no option", hint="options begin with --")
        else:
            last = flags[-1]
            flags[-1] = Flag(last.option, (*last.values, argument), origin, reason)
    return flags
