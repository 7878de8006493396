"""`log_to` with the real package of Weights & Biases, offline: what it wrote lies in its file."""

import re

import pytest


def test_weights_and_biases_takes_the_numbers(tmp_path, monkeypatch, child):
    pytest.importorskip("wandb")
    for key, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    child(
        """
        import sys, numpy as np, rollway, wandb
        from rollway.metrics import log_to
        example = {"x": np.zeros(4, np.float32)}
        with wandb.init(project="tests", dir=sys.argv[1], settings=wandb.Settings(console="off")) as run:
            with rollway.Server(example, 2) as server, log_to(run, server, every_s=3600) as log:
                log.write()
                run.log({"loss": 0.5})
                for _ in range(3):
                    server.submit(example)
            assert run.summary["rollway/ready_samples"] == 3
        """,
        tmp_path,
    ).ends(timeout=100)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = file.read_bytes()
    assert re.search(rb"rollway/ready_samples.{3}3\b", written)  # how the package writes a number
    assert b"rollway/samples_released_per_s" in written and b"rollway/seconds" in written and b"loss" in written
