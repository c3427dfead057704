"""The launch line and environment of a server."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from auxtap.core.errors import UsageError
from auxtap.serving import profile
from auxtap.serving.profile import LaunchSpec, build_launch, check_extra_arguments
from auxtap.tap import protocol

SPEC = LaunchSpec(
    python=Path("/env/bin/python"),
    tree=Path("/tree"),
    model_path="/models/tiny",
    port=30000,
    log=Path("/logs/server.log"),
    bytecode=Path("/cache/bytecode"),
    spool=Path("/dev/shm/spool"),
    layers=(3, 31, 59),
    cpu=True,
    release="0.5.9",
    patch_digest="p" * 64,
    source_digest="s" * 64,
)


def value_of(argv: tuple[str, ...], option: str) -> str:
    """Return the value that argparse would keep: the last one."""
    return [argv[i + 1] for i, word in enumerate(argv) if word == option][-1]


def test_the_taps_bounds_are_handed_on() -> None:
    assert protocol.ENV_MAX_PENDING_BYTES.startswith("AUXTAP_MAX_")
    assert protocol.ENV_MAX_WAIT_S.startswith("AUXTAP_MAX_")


def test_cpu_launch_line() -> None:
    launch = build_launch(SPEC, {})
    assert launch.argv[:3] == ("/env/bin/python", "-m", "sglang.launch_server")
    assert value_of(launch.argv, "--model-path") == "/models/tiny"
    assert value_of(launch.argv, "--host") == "127.0.0.1"
    assert value_of(launch.argv, "--device") == "cpu"
    assert value_of(launch.argv, "--attention-backend") == "torch_native"
    assert value_of(launch.argv, "--dtype") == "float32"
    assert {"--disable-radix-cache", "--skip-server-warmup", "--disable-overlap-schedule"} <= set(launch.argv)


@pytest.mark.parametrize(
    ("release", "asked"), [("0.4.8.post1", False), ("0.4.10.post2", True), ("", True), ("fork", True)]
)
def test_a_release_without_the_switch_is_not_asked_to_skip_its_warm_up(release: str, asked: bool) -> None:
    argv = build_launch(replace(SPEC, release=release), {}).argv
    assert ("--skip-server-warmup" in argv) == asked


def test_gpu_launch_line_has_no_cpu_arguments_and_no_stand_ins() -> None:
    launch = build_launch(replace(SPEC, cpu=False), {"PYTHONPATH": "/theirs"})
    assert "--device" not in launch.argv
    assert "--disable-radix-cache" in launch.argv
    assert launch.environment["PYTHONPATH"] == "/tree/python" + os.pathsep + "/theirs"
    assert "AUXTAP_CPU_SHIM" not in launch.environment
    assert "SGLANG_USE_CPU_ENGINE" not in launch.environment


def test_the_persons_arguments_come_last_and_win() -> None:
    extra = ("--dtype", "bfloat16", "--max-total-tokens=99")
    argv = build_launch(replace(SPEC, extra_arguments=extra), {}).argv
    assert argv[-3:] == extra
    assert value_of(argv, "--dtype") == "bfloat16"


def test_environment() -> None:
    inherited = {
        "HOME": "/home/somebody",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": "/must/not/shadow/the/engine",
        "AUXTAP_SPOOL": "/spool/of/another/server",
        "AUXTAP_CACHE": "/cache",
        "AUXTAP_MAX_WAIT_S": "5",
    }
    environment = build_launch(SPEC, inherited).environment
    assert environment["HOME"] == "/home/somebody"
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONPYCACHEPREFIX"] == "/cache/bytecode"
    assert environment["PYTHONPATH"] == str(profile.CPU_SHIM) + os.pathsep + "/tree/python"
    assert environment["AUXTAP_SPOOL"] == "/dev/shm/spool"
    assert environment["AUXTAP_LAYERS"] == "3,31,59"
    assert environment["AUXTAP_RELEASE"] == "0.5.9"
    assert environment["AUXTAP_PATCH_DIGEST"] == "p" * 64
    assert environment["AUXTAP_SOURCE_DIGEST"] == "s" * 64
    assert environment["AUXTAP_MAX_WAIT_S"] == "5"
    assert "AUXTAP_FINAL" not in environment
    assert build_launch(replace(SPEC, final="both"), inherited).environment["AUXTAP_FINAL"] == "both"
    assert "AUXTAP_CACHE" not in environment


def test_without_a_spool_the_tap_stays_off() -> None:
    environment = build_launch(replace(SPEC, spool=None), {"AUXTAP_SPOOL": "/other"}).environment
    assert not any(name.startswith("AUXTAP_") and name != "AUXTAP_CPU_SHIM" for name in environment)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--speculative-algorithm", "EAGLE3"),
        ("--speculative-algo", "EAGLE3"),
        ("--speculative-algorithm=EAGLE3",),
        ("--enable-two-batch-overlap",),
        ("--enable_two_batch_overlap",),
        ("--enable-piecewise-cuda-graph",),
        ("--is-embedding",),
        ("--model-path", "/elsewhere"),
        ("--port", "1"),
        ("--config", "options.yaml"),
        ("--moe-dense-tp-size", "1"),
        ("--moe-a2a-backend", "mori"),
        ("--moe-a2a-backend", "deepep", "--enable-dp-attention"),
        ("--disaggregation-mode=prefill",),
    ],
)
def test_refused_arguments(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="refused: "):
        build_launch(replace(SPEC, extra_arguments=arguments), {})


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--chunked-prefill-size", "16"),
        ("--pp-size", "2"),
        ("--tp", "8", "--enable-dp-attention", "--dp-size", "8"),
        ("--moe-a2a-backend", "deepep"),
        ("--moe-a2a-backend", "none", "--enable-dp-attention"),
        ("--moe-dense-tp-size", "2"),
        ("--disaggregation-mode", "null"),
        ("--chunked-prefill-size", "-1"),
        ("--disable-piecewise-cuda-graph",),
        ("--trust-remote-code",),
    ],
)
def test_allowed_arguments(arguments: tuple[str, ...]) -> None:
    check_extra_arguments(arguments)


def test_a_cpu_is_bound_for_each_rank(tmp_path: Path) -> None:
    assert profile.cpu_binding(("--pp-size", "2"), tmp_path) == {}
    assert n_bound(("--tp-size", "3"), tmp_path) == 3
    module = tmp_path / "python/sglang/srt/utils/numa_utils.py"
    module.parent.mkdir(parents=True)
    module.write_text("SGLANG_CPU_OMP_THREADS_BIND, tp_size: int")
    assert n_bound(("--tp-size", "3", "--pp-size=2"), tmp_path) == 3
    module.write_text("SGLANG_CPU_OMP_THREADS_BIND, world_size: int")
    assert n_bound(("--tp-size", "3", "--pp-size=2"), tmp_path) == 6


def n_bound(arguments: tuple[str, ...], tree: Path) -> int:
    return len(profile.cpu_binding(arguments, tree)["SGLANG_CPU_OMP_THREADS_BIND"].split("|"))


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:30000"), ("0.0.0.0", "http://127.0.0.1:30000"), ("::1", "http://[::1]:30000")],
)
def test_url(host: str, url: str) -> None:
    assert replace(SPEC, host=host).url == url


def test_default_layers_are_eagle3s_of_the_models_depth(tmp_path: Path) -> None:
    assert profile.default_layers(61) == (3, 31, 59)
    assert profile.default_layers(8) == (3, 5, 6)
    assert profile.default_layers(2) == (1,)
    assert profile.model_depth(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 61}}))
    assert profile.model_depth(str(tmp_path)) == 61
    (tmp_path / "config.json").write_text("no json")
    assert profile.model_depth(str(tmp_path)) is None
