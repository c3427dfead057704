"""The environment of a tapped server."""

from pathlib import Path

import pytest

from auxtap.tap.config import RefusedError, TapConfig


def test_layers_are_sorted():
    config = TapConfig.from_environment({"AUXTAP_SPOOL": "/s", "AUXTAP_LAYERS": "31, 3,59"})
    assert config.layers == (3, 31, 59)
    assert config.spool == Path("/s")
    assert config.max_wait_s == 60
    assert config.way == "patch"
    assert TapConfig.from_environment({"AUXTAP_LAYERS": "3", "AUXTAP_WAY": "plugin"}).way == "plugin"
    assert config.final == "post-norm"


def test_the_final_state_is_named():
    config = TapConfig.from_environment({"AUXTAP_LAYERS": "3", "AUXTAP_FINAL": "both"})
    assert config.final == "both"


@pytest.mark.parametrize(
    "variable",
    [
        {"AUXTAP_LAYERS": "3,x"},
        {"AUXTAP_LAYERS": "3,3"},
        {"AUXTAP_FINAL": "before"},
        {"AUXTAP_MAX_WAIT_S": "0"},
        {"AUXTAP_MAX_WAIT_S": "inf"},
        {"AUXTAP_MAX_WAIT_S": "soon"},
        {"AUXTAP_MAX_PENDING_BYTES": "-1"},
        {"AUXTAP_MAX_PENDING_BYTES": "nan"},
    ],
)
def test_odd_values_are_refused(variable):
    with pytest.raises(RefusedError, match="auxtap: refused"):
        TapConfig.from_environment({"AUXTAP_LAYERS": "3", **variable})
