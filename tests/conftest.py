"""What tests of several folders share."""

import signal

import pytest

from auxtap.commands.context import cache_layout
from auxtap.core.cache import CacheLayout
from auxtap.serving.engine_env import EngineEnvironment, set_up_engine
from auxtap.tests.leftovers import watch_this_run

_WITH_ENGINE = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-releases", action="store_true", help="trace every release rather than a few of them")
    parser.addoption("--engine-matrix", action="store_true", help="prove all engine cases, not a covering few")
    parser.addoption("--engine-kills", type=int, default=6, help="kills -9 beside a real server, each way [default: 6]")


def pytest_configure() -> None:
    # What a script starts in the background inherits SIGINT as ignored, and SIGHUP with nohup; tests that interrupt
    # commands need both.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    watch_this_run()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[_WITH_ENGINE] = {item.nodeid for item in items if item.get_closest_marker("engine")}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the tests with a real server took, setting them up included: they have a budget of 15 minutes."""
    reports = [each for group in terminalreporter.stats.values() for each in group]
    chosen = config.stash.get(_WITH_ENGINE, set())
    engine = [each for each in reports if isinstance(each, pytest.TestReport) and each.nodeid in chosen]
    if engine:
        minutes, n_tests = sum(each.duration for each in engine) / 60, len({each.nodeid for each in engine})
        terminalreporter.write_line(f"{n_tests} engine tests took {minutes:.1f} min")


@pytest.fixture(scope="session")
def shared_cache() -> CacheLayout:
    """Return the cache that tests share with each other and with the person's own commands."""
    return cache_layout()


@pytest.fixture(scope="session")
def engine(shared_cache: CacheLayout) -> EngineEnvironment:
    """Return the CPU engine environment of the pinned release, made when it is not there."""
    return set_up_engine("0.5.9", shared_cache)
