"""The other ways to build the images: with a framework, with JupyterLab, for GPUs. Needs root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch_index
from building import Builder
from containers import await_line
from daemon import DockerError

from waiting import eventually


def test_an_image_with_pytorch_trains_with_the_scripts_people_have(builder: Builder) -> None:
    with torch_index.served() as (index, version):
        arguments = {"FRAMEWORK": "torch", "FRAMEWORK_VERSION": version, "FRAMEWORK_INDEX": index}
        image = builder.build("cpu", "ronde:torch", **arguments)
    run = ["run", "--rm", "--network=none", image, "horovodrun", "-np", "2", "python", "torch_digits.py"]
    assert "accuracy" in builder.daemon.docker(*run)
    assert "[X] PyTorch" in builder.daemon.docker("run", "--rm", "--network=none", image, "horovodrun", "--check-build")


def test_jupyter_serves_with_a_token_that_is_in_no_log(builder: Builder) -> None:
    image = builder.build("cpu", "ronde:jupyter", FRAMEWORK="none", JUPYTER="yes")
    daemon = builder.daemon
    with daemon.container("--network=none", image, "jupyter") as notebook:
        await_line(daemon, notebook, "is running at")
        token = daemon.docker("exec", notebook, "cat", "/run/ronde/jupyter-token.0")
        assert len(token) == 48
        log = daemon.result("logs", notebook)
        assert token not in log.stdout + log.stderr
        assert "cat /run/ronde/jupyter-token.0" in log.stderr

        def asked(header: str) -> str:
            fetch = (
                "import sys, urllib.request as web\n"
                "ask = web.Request('http://127.0.0.1:8888/api/status', headers={'Authorization': sys.argv[1]})\n"
                "print(web.urlopen(ask).read().decode())"
            )
            return daemon.docker("exec", notebook, "python", "-c", fetch, header)

        eventually(lambda: "started" in json.loads(asked(f"token {token}")), "the server to start")
        with pytest.raises(DockerError, match="403"):
            asked("token wrong")


def test_jupyter_does_not_start_with_an_empty_token(builder: Builder, tmp_path: Path) -> None:
    image = builder.build("cpu", "ronde:jupyter", FRAMEWORK="none", JUPYTER="yes")
    (tmp_path / "jupyter-token").touch()
    given = f"--volume={tmp_path}:/etc/ronde:ro"
    done = builder.daemon.result("run", "--rm", "--network=none", given, image, "jupyter", timeout=60)
    assert done.returncode == 1
    assert "/etc/ronde/jupyter-token is empty" in done.stderr


def test_the_image_for_gpus_is_built_from_its_own_file(builder: Builder) -> None:
    image = builder.build("gpu", "ronde:gpu", FRAMEWORK="none")
    run = ["run", "--rm", "--network=none", image, "ronde", "run", "-np", "2", "python", "digits.py"]
    assert "accuracy on 2 ranks" in builder.daemon.docker(*run)


def test_an_unknown_framework_ends_the_build_in_plain_words(builder: Builder) -> None:
    with pytest.raises(DockerError, match="FRAMEWORK is caffe; it can be torch, tensorflow or none"):
        builder.build("cpu", "ronde:caffe", FRAMEWORK="caffe")
