"""A store in a bucket of a real S3 server on loopback, by way of s3fs; the server is moto's, a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from auxtap.core.cache import CacheLayout
from auxtap.serving.processes import choose_port
from auxtap.tests.extraction.other_packages import install_packages

pytestmark = [pytest.mark.network, pytest.mark.slow]
BUCKET = "states"
N_SAMPLES = 40


@pytest.fixture(scope="module")
def packages(shared_cache: CacheLayout) -> Path:
    """s3fs and moto."""
    return install_packages(Path(__file__).with_name("s3_requirements.txt"), shared_cache)


@pytest.fixture
def environment(packages: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A running server, and the variables with which every process of ours finds it and nothing else."""
    port = choose_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    variables = {
        **os.environ,
        "PYTHONPATH": str(packages),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }
    serve = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "moto.log").open("wb") as log:
        server = subprocess.Popen(serve, env=variables, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(url))
        assert httpx.put(f"{url}/{BUCKET}", trust_env=False).status_code == 200
        variables["MOTO_PID"] = str(server.pid)
        yield variables
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code < 500
    except httpx.HTTPError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def objects(environment: dict[str, str]) -> dict[str, bytes]:
    """What lies in the bucket, read by another client than ours."""
    script = (
        "import boto3, json, sys; s3 = boto3.client('s3'); "
        f"found = s3.get_paginator('list_objects_v2').paginate(Bucket='{BUCKET}'); "
        "keys = [each['Key'] for page in found for each in page.get('Contents', ())]; "
        f"print(json.dumps({{key: s3.get_object(Bucket='{BUCKET}', Key=key)['Body'].read().hex() for key in keys}}))"
    )
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True).stdout
    return {key: bytes.fromhex(text) for key, text in json.loads(out).items()}


@pytest.mark.timeout(600)
def test_a_store_in_a_bucket(
    environment: dict[str, str], server: Any, write_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    """Killed in the middle, stalled by the bucket, gone on with, and equal to the store of a folder."""
    main = [sys.executable, "-c", "from auxtap.cli import main; main()"]
    where = ["--server", server.url, "--spool", str(server.tap.spool)]
    extract = [*main, "extract", str(write_dataset(N_SAMPLES)), *where, "--canary", "0", "--concurrency", "2", "--json"]
    url = f"s3://{BUCKET}/run 1/store"
    remote = [*extract, "--out", url, "--catalog", str(tmp_path / "catalog")]

    server.delay_s = 0.3
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(remote, env=environment, stdout=log, stderr=log)
    ledger = tmp_path / "catalog" / "ledger.jsonl"
    wait_for(lambda: first.poll() is not None or (ledger.exists() and ledger.read_bytes().count(b"\n") >= 6))
    assert first.poll() is None, (tmp_path / "first.log").read_text()
    first.kill()
    first.wait()
    server.delay_s = 0.0
    moto = int(environment["MOTO_PID"])
    second = subprocess.Popen(remote, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    before = ledger.read_bytes().count(b"\n")
    wait_for(lambda: second.poll() is not None or ledger.read_bytes().count(b"\n") > before)
    os.kill(moto, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(moto, signal.SIGCONT)
    out, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    summary = json.loads(out)
    assert summary["stored"] + summary["already_stored"] == N_SAMPLES and summary["already_stored"] >= 6

    folder = subprocess.run([*extract, "--out", str(tmp_path / "folder")], env=environment, capture_output=True)
    assert folder.returncode == 0
    found = {key.rpartition("/")[2]: data for key, data in objects(environment).items()}
    expected = {path.name: path.read_bytes() for path in (tmp_path / "folder" / "samples").iterdir()}
    assert {name: found[name] for name in expected} == expected
    assert set(found) == {*expected, "ledger.jsonl", "manifest.json"}

    check = subprocess.run([*main, "check", url, "--json"], env=environment, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    assert json.loads(check.stdout)["stored"] == N_SAMPLES
    assert "hunter2" not in said + check.stderr + (tmp_path / "catalog" / "manifest.json").read_text()
