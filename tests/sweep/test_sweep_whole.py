"""Whole sweeps in processes of their own, compared bit for bit with single runs. Minutes long."""

import json
import shutil
import subprocess
import time

import pytest
from support import load_script
from sweep_support import KILLED, TINY, call, command, environment

script = load_script("kill_test")
ROWS = "--methods=base,rose"
SEEDS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def singles(tmp_path_factory):
    """A folder where each seed was run alone, in its default workdir, and the environment of the command."""
    folder = tmp_path_factory.mktemp("singles")
    env = environment(folder / "compiled")
    (folder / "tiny.py").write_text(TINY)
    for seed in SEEDS:
        code, _, said = call(folder, env, "rose_jax.main", "--config", "tiny.py", f"--config.seed={seed}", ROWS)
        assert code == 0, said
    return folder, env


def check_equal(singles, folder, seeds=SEEDS):
    for seed in seeds:
        run = f"runs/digits_cold5_seed{seed}"
        assert script.compare(singles / run, folder / run) == []


@pytest.mark.slow
def test_a_sweep_with_a_failing_run_that_is_killed_and_started_again(singles, tmp_path):
    alone, env = singles
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "killed.py").write_text(KILLED)
    arguments = ("--config", "tiny.py", "--seeds", ",".join(map(str, SEEDS)), ROWS)
    sweep = subprocess.Popen(
        command("rose_jax.sweep", *arguments),
        cwd=tmp_path,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (tmp_path / "runs/digits_cold5_seed1/checkpoints/base/stage_000.manifest.json").exists():
        assert sweep.poll() is None
        time.sleep(0.02)
    sweep.kill()
    sweep.wait()
    assert not (tmp_path / "runs/digits_cold5_seed1/results.json").exists()
    # The same again, and beside it a run that fails.
    code, out, said = call(tmp_path, env, "rose_jax.sweep", *arguments, "--config", "tiny.py", "killed.py")
    assert code == 1
    check_equal(alone, tmp_path)
    assert "FAILED: runs/killed_seed0, killed by SIGKILL" in said
    assert "about to be killed" in said
    assert "4 of 8 runs failed" in said
    assert "Mean ± sample deviation over 4 runs (seeds 0, 1, 2, 3)." in out


@pytest.mark.slow
def test_four_values_of_alpha_are_one_training(singles, tmp_path):
    """The sweep begins where a single run has trained nothing yet."""
    alone, env = singles
    (tmp_path / "tiny.py").write_text(TINY)
    values = ("0.02", "0.05", "0.1", "0.2")
    arguments = ("--config", "tiny.py", "--set", f"evolution.alpha={','.join(values)}", ROWS, "--parallel", "2")
    code, out, said = call(tmp_path, env, "rose_jax.sweep", *arguments)
    assert code == 0, said
    runs = [path for path in sorted((tmp_path / "runs").iterdir()) if (path / "results.json").exists()]
    assert len(runs) == 4
    for stage in range(3):
        manifests = [run / f"checkpoints/base/stage_{stage:03d}.manifest.json" for run in runs]
        assert len({path.stat().st_ino for path in manifests}) == 1, "one file under four names"
    trained = [json.loads((run / "results.json").read_text())["train"]["objectives"]["base"] for run in runs]
    assert sum("trained_in" not in one for one in trained) == 1
    assert len({json.loads((run / "results.json").read_text())["scores"]["rose"]["options"] for run in runs}) == 4
    assert all(f"alpha {value}" in out for value in values[:3])


@pytest.mark.slow
def test_the_same_sweep_on_two_ray_nodes_one_of_which_dies(singles, tmp_path):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    alone, env = singles
    (tmp_path / "tiny.py").write_text(TINY)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        arguments = ("--config", "tiny.py", "--seeds", ",".join(map(str, SEEDS)), ROWS, "--ray", cluster.address)
        sweep = subprocess.Popen(
            command("rose_jax.sweep", *arguments),
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while len(list(tmp_path.glob("runs/*/checkpoints/base/stage_000.manifest.json"))) < 2:
            assert sweep.poll() is None, sweep.communicate()[0]
            time.sleep(0.05)
        assert not list(tmp_path.glob("runs/*/results.json"))
        cluster.remove_node(nodes[0], allow_graceful=False)
        said = sweep.communicate()[0]
        assert sweep.returncode == 0, said
    finally:
        cluster.shutdown()
    check_equal(alone, tmp_path)
    logs = [path.read_text() for path in tmp_path.glob("runs/sweep_*/*.log")]
    assert len(logs) == 4
    assert "Mean ± sample deviation over 4 runs (seeds 0, 1, 2, 3)." in said


@pytest.mark.slow
def test_a_sweep_with_a_mirror_whose_folder_is_lost(singles, tmp_path):
    alone, env = singles
    (tmp_path / "tiny.py").write_text(TINY)
    arguments = ("--config", "tiny.py", "--seeds", "0,1", ROWS, "--mirror", tmp_path / "copies")
    code, _, said = call(tmp_path, env, "rose_jax.sweep", *arguments)
    assert code == 0, said
    shutil.rmtree(tmp_path / "runs")
    begun = time.monotonic()
    code, out, said = call(tmp_path, env, "rose_jax.sweep", *arguments)
    assert code == 0, (said, begun)
    check_equal(alone, tmp_path, seeds=(0, 1))
