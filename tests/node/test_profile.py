"""Profiles: what is read, what is refused and how, and that every starting point is whole but for its blanks."""

import re
from pathlib import Path

import pytest

from auxtap.core.errors import UsageError
from auxtap.node.flags import HAZARD, PROFILE, USER, FinalFlags, HazardFlag, final_flags
from auxtap.node.library import copy_starting_point, find_profile, starting_points
from auxtap.node.node_profile import NodeProfile, read_profile
from auxtap.node.node_session import expand_paths
from auxtap.serving.profile import CAPTURE_ARGUMENTS

SMALL = """
[ssh]
host = "gpu"
[node]
python = "~/venv/bin/python"
sglang = "/opt/sglang"
[model]
path = "/models/kimi"
[storage]
spool = "/dev/shm/s"
store = "/data/store"
"""
RADIX = HazardFlag("--disable-radix-cache", "radix cache", "cached rows are never computed")
NEEDED = (RADIX,)


def read(tmp_path: Path, text: str) -> NodeProfile:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_profile(path)


def test_the_smallest_profile_has_defaults(tmp_path: Path) -> None:
    profile = read(tmp_path, SMALL)
    assert (profile.name, profile.ssh.host, profile.port) == ("mine", "gpu", 30000)
    assert (profile.parallel.tp, profile.layers, profile.arguments) == (1, (), ())
    assert profile.patch_source == "pypi:0.5.9"
    assert profile.final == "post-norm"
    assert read(tmp_path, SMALL.replace('"/models/kimi"', '"/models/kimi"\nfinal = "both"')).final == "both"
    expanded = expand_paths(profile, "/home/me")
    assert expanded.python == "/home/me/venv/bin/python"
    assert expanded.root == "/home/me/.auxtap-node"


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (("[ssh]\n", '[ssh]\nhots = "x"\n'), "unknown key ssh.hots", "did you mean ssh.host?"),
        (("[model]", "[modle]\nx = 1\n[model]"), "unknown key modle", "did you mean model?"),
        (("[model]", "[server]\nzzz = 1\n[model]"), "unknown key server.zzz", "known here: port"),
        (('host = "gpu"', 'host = "-oProxyCommand=x"'), "no host name", "alias"),
        (('host = "gpu"', 'host = "gpu; rm"'), "no host name", "alias"),
        (('host = "gpu"', 'host = "CHANGE-ME"'), "still the starting point's", "name your node"),
        (('"/models/kimi"', '"models/kimi"'), "not an absolute path", "begin it with"),
        (('"/models/kimi"', '"/models/../kimi"'), "not an absolute path", "begin it with"),
        (('"/models/kimi"', '"/models/kimi"\nlayers = [31, 3]'), "not ascending capture indices", ""),
        (('"/models/kimi"', '"/models/kimi"\nlayers = [0, 3]'), "not ascending capture indices", ""),
        (('"/models/kimi"', '"/models/kimi"\nfinal = "before"'), "is 'before'", "post-norm, pre-norm, both"),
        (('"/data/store"', '"/data/store"\nstore_bytes = "much"'), "no size", "200G"),
        (("[model]", '[server]\nport = "30000"\n[model]'), "not a whole number", ""),
        (("[model]", "[server]\nport = 80\n[model]"), "it goes from 1024", ""),
        (("[model]", "[server]\narguments = [1]\n[model]"), "which is no text", "quotes"),
        (("[model]", '[environment]\nHF_TOKEN = "x"\n[model]'), "looks like a secret", "login shell"),
        (("[model]", '[environment]\nAUXTAP_SPOOL = "x"\n[model]'), "is set by auxtap itself", ""),
        (("[model]", "[environment]\nX = [1]\n[model]"), "neither a text nor a number", ""),
        (('path = "/models/kimi"', ""), "model.path is missing", ""),
        (("[ssh]", "[ssh"), "is no TOML", ""),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, change: tuple[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        read(tmp_path, SMALL.replace(*change))
    assert hint in (caught.value.hint or "")
    assert "mine.toml" in caught.value.message


@pytest.mark.parametrize("name", starting_points())
def test_every_starting_point_is_whole_but_for_its_blanks(tmp_path: Path, name: str) -> None:
    path = copy_starting_point("mine", name, tmp_path)
    with pytest.raises(UsageError, match="is still the starting point's"):
        read_profile(path)
    text = path.read_text().replace('host = "CHANGE-ME"', 'host = "gpu"').replace("CHANGE-ME", "/some/where")
    path.write_text(text)
    profile = find_profile("mine", tmp_path)
    flags = final_flags(profile, profile.model_path, NEEDED, ())
    assert flags.value("--tp-size") == (str(profile.parallel.tp) if profile.parallel.tp > 1 else None)
    assert "run this file on this hardware" in text or profile.cpu
    assert max(len(line) for line in text.splitlines()) <= 125


def test_starting_points_cover_the_machines() -> None:
    assert set(starting_points()) == {
        "cpu", "kimi-k25-8x-b200", "kimi-k25-8x-h200", "kimi-k25-8x-rtx-pro-6000", "one-consumer-gpu",
    }  # fmt: skip


def test_profiles_are_found_and_never_overwritten(tmp_path: Path) -> None:
    copy_starting_point("mine", "cpu", tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        copy_starting_point("mine", "cpu", tmp_path)
    with pytest.raises(UsageError) as caught:
        find_profile("mien", tmp_path)
    assert caught.value.hint == "did you mean mine?"
    with pytest.raises(UsageError) as caught:
        copy_starting_point("x", "kimi-k25-8x-h100", tmp_path)
    assert caught.value.hint == "did you mean kimi-k25-8x-h200?"
    with pytest.raises(UsageError, match="there is no profile"):
        find_profile("../mine", tmp_path)


def flags_of(tmp_path: Path, server: str, user: tuple[str, ...] = (), extra: str = "") -> FinalFlags:
    profile = read(tmp_path, f"{SMALL}\n[server]\n{server}\n{extra}")
    return final_flags(profile, profile.model_path, NEEDED, user)


def test_each_flag_says_where_it_came_from(tmp_path: Path) -> None:
    flags = flags_of(
        tmp_path, 'arguments = ["--attention-backend", "triton", "--mem-fraction-static=0.8"]',
        ("--attention-backend", "flashinfer", "--log-requests"), "[parallel]\ntp = 8",
    )  # fmt: skip
    by_option = {flag.option: flag for flag in flags.flags}
    assert by_option["--disable-radix-cache"].origin == HAZARD
    assert by_option["--disable-radix-cache"].reason == "radix cache: cached rows are never computed"
    assert (by_option["--tp-size"].values, by_option["--tp-size"].origin) == (("8",), PROFILE)
    assert by_option["--tp-size"].reason == "mine.toml: parallel.tp"
    assert by_option["--mem-fraction-static"].values == ("0.8",)
    assert (by_option["--attention-backend"].values, by_option["--attention-backend"].origin) == (("flashinfer",), USER)
    assert [flag.values for flag in flags.replaced] == [("triton",)]
    assert flags.argv[:6] == ("--model-path", "/models/kimi", "--host", "127.0.0.1", "--port", "30000")
    assert set(CAPTURE_ARGUMENTS) <= set(flags.argv)
    assert "triton" not in flags.argv


def test_a_release_without_the_switch_is_not_asked_to_skip_its_warm_up(tmp_path: Path) -> None:
    old = SMALL.replace('sglang = "/opt/sglang"', 'sglang = "/opt/sglang"\npatch_source = "pypi:0.4.8"')
    flags = final_flags(read(tmp_path, old), "/models/kimi", (), ())
    assert "--skip-server-warmup" not in flags.argv


@pytest.mark.parametrize(
    ("server", "user", "message"),
    [
        ('arguments = ["--enable-two-batch-overlap"]', (), "mine.toml: server.arguments: .* is refused: blocks that"),
        ("", ("--speculative-algorithm", "EAGLE3"), "after --: .* is refused: a draft model"),
        ("", ("--host", "0.0.0.0"), "after --: server argument --host is refused"),
        ('arguments = ["--tp", "4"]', (), "server.arguments holds --tp-size"),
        ('arguments = ["--log-level", "info", "--log_level", "debug"]', (), "--log-level stands twice"),
        ('arguments = ["info"]', (), "belongs to no option"),
        (
            'arguments = ["--moe-a2a-backend=deepep"]', ("--enable-dp-attention",),
            "argument --moe-a2a-backend deepep together with --enable-dp-attention is refused: the gather",
        ),
        ("", ("--enable-breakable-cuda-graph",), "after --: .* is refused: the Python of the layer loop"),
        ('arguments = ["--dcp-size", "2"]', (), "arguments: server argument --dcp-size 2 is refused"),
        ("", ("--disaggregation-mod=decode",), r"after --: .* \(taken for --disaggregation-mode\) is refused"),
    ],
)  # fmt: skip
def test_conflicts_are_refused_with_the_reason(
    tmp_path: Path, server: str, user: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        flags_of(tmp_path, server, user)


@pytest.mark.parametrize(
    "user",
    [
        ("--dcp-size", "1"),
        ("--moe-a2a-backend", "none", "--enable-dp-attention"),
        ("--enable-dp-attention",),
        ("--moe-dense-tp-size", "2"),
        ("--enable-torch-compile",),
    ],
)
def test_what_changes_nothing_is_taken(tmp_path: Path, user: tuple[str, ...]) -> None:
    assert set(user) <= set(flags_of(tmp_path, "", user).argv)


def test_what_stands_beside_the_hook_depends_on_the_final_state(tmp_path: Path) -> None:
    user = ("--enable-torch-compile",)
    profile = read(tmp_path, SMALL.replace('"/models/kimi"', '"/models/kimi"\nfinal = "both"'))
    with pytest.raises(UsageError, match="the hook that takes the state before the final norm"):
        final_flags(profile, profile.model_path, NEEDED, user)
    assert set(user) <= set(final_flags(profile, profile.model_path, NEEDED, user, "post-norm").argv)
    plain = read(tmp_path, SMALL)
    with pytest.raises(UsageError, match="the hook that takes the state before the final norm"):
        final_flags(plain, plain.model_path, NEEDED, user, "pre-norm")
