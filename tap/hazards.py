"""Settings under which states would be wrong or missing. The patch writes this file anew from auxtap's table.

`REFUSED` holds (reason, prenorm, switches): the server must not start with all the switches on; with `prenorm` only
where the state before the final norm is taken. A switch is (server argument, place within its value, values that
switch it on, values that do not): where the first are named, only they do. `NEEDED` holds (server argument, reason):
it must be on where the release has it. `CLEARED` holds (server argument, unless): the tap turns it off itself where
the release lacks the argument `unless`.
"""

REFUSED: "tuple[tuple[str, bool, tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]], ...]" = ()
NEEDED: "tuple[tuple[str, str], ...]" = ()
CLEARED: "tuple[tuple[str, str], ...]" = ()
