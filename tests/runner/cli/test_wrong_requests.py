"""Wrong requests of all commands: a sentence with what is allowed and exit code 2; nothing runs."""

import shlex
from pathlib import Path

import pytest
from asking import code_of

from daso_bench.runner.launch import local
from daso_bench.runner.records.study_plan import TRIAL

MISSION = "+study=mission seed=0 study.arm="
SLURM = "launcher=slurm cluster=laptop"
SHAPES = "dataset=shapes model=small_fcn train.target=0.8"


@pytest.mark.parametrize(
    ("request_words", "message"),
    [
        # runs and sweeps
        ("strategy=ddpp", "strategy=ddpp: unknown (did you mean 'ddp'?)"),
        ("strategy=daso strategy.sync_every=0", "strategy.sync_every=0: must be >= 1"),
        ("-m train.epochs=0,-1", "train.epochs=0: must be >= 1"),
        ("statsu results", "statsu: neither a command (list, status, resume, cancel, evaluate, report, "),
        ("--nosuch", "unrecognized arguments: --nosuch"),
        ("--config-dir nowhere", "--config-dir=nowhere: no such folder"),
        # what is there
        ("status nowhere", "nowhere: no such folder"),
        ("resume .", "no run in it"),
        ("evaluate .", "is no run directory"),
        ("list modles", "did you mean 'models'?"),
        # pilots, references and tuning
        (f"pilot {MISSION}'ddp by nodes' --runs 9", "--runs 9: must be 10 or more"),
        (f"pilot {MISSION}'ddp by nodes' --reference --runs 9", "--runs 9: must be 10 or more"),
        (f"pilot {MISSION}'ddp by nodes' {SLURM}", "launcher=slurm: pilots are waited for"),
        (f"pilot {MISSION}'ddp by nodes' {SLURM} --reference", "launcher=slurm: references are waited for"),
        (
            f"pilot {MISSION}'ddp by nodes' train.target=null --reference",
            "train.target=null: a reference is the number of samples",
        ),
        (f"pilot {MISSION}'ddp by nodes' --output mine", "--output mine: belongs to --reference"),
        (
            f"pilot +study=quick strategy=ddp {SHAPES}",
            "train.target_metric=miou: a pilot sets targets of accuracy alone; take",
        ),
        (f"tune {MISSION}'ddp flat' --trials 6", "--trials=6: must be a power of two, 4 or more"),
        (f"tune {MISSION}'ddp flat' study.tune_trials=2", "study.tune_trials=2: must be a power of two"),
        (f"tune {MISSION}'ddp flat' seed={TRIAL + 3}", f"seeds [{TRIAL + 3}] were tuned on and are scored"),
        (f"tune {MISSION}'ddp flat' {SLURM}", "launcher=slurm: trials are waited for"),
        (f"tune {MISSION}'ddp flat' study.role=same_seeds", "nothing to tune"),
        # data sets
        ("prepare dataset=digits seed=1", "seed=1: must be dataset=NAME or dataset.KEY=VALUE"),
        ("prepare digits", "digits: must be dataset=NAME"),
        ("prepare dataset.root=x", "prepare: takes dataset=NAME"),
        ("prepare dataset=digit", "dataset=digit: unknown (did you mean 'digits'"),
        ("prepare dataset=imagefolder dataset.crop=0", "dataset.crop=0: must be >= 1"),
        ("prepare dataset=imagefolder dataset.corp=8", "did you mean dataset.crop"),
        ("prepare dataset=imagefolder dataset.root=nowhere", "nowhere: no such folder"),
        # the conformance kit, here and on a cluster
        # argparse gives the word after --ranks to it
        ("check --ranks 2 2,1 strategy=dazo", "strategy=dazo: unknown (did you mean 'daso'?)"),
        ("check train.epochs=3", "train.epochs=3: check takes strategy=NAME"),
        ("check ddp", "ddp: check takes strategy=NAME"),
        ("check strategy=ddp strategy.sync_evry=3", "strategy.sync_evry: unknown key"),
        ("check strategy=ddp --ranks 0,2", "--ranks 0,2: "),
        ("check strategy=ddp --jobs=two", "'two'"),
        ("check launcher=local", "launcher=local: only launcher=slurm has a cluster to check"),
        ("check launcher=slurm train.epochs=3", "train.epochs=3: check launcher=slurm takes strategy"),
        ("check launcher=slurm launcher.timeot_min=3", "launcher.timeot_min: unknown key"),
        ("check launcher=slurm launcher.submit=false", "launcher.submit=false: needs an allocation"),
        # the machine
        ("doctor results", "results: must be KEY=VALUE"),
        ("doctor strategy=ddp", "doctor=strategy: unknown"),
        ("doctor launcher=slrum", "did you mean 'slurm'?"),
        ("calibrate launcher=simulated", "launcher=simulated: calibrate needs real processes; take local"),
        ("calibrate +study=quick", "a study is many runs; choose without +study"),
        ("calibrate cluster=ethernet_1g", "launcher=local: real processes have the links"),
        ("calibrate strategy=daso", "strategy=daso: calibrate measures the machine by plain ddp"),
        ("calibrate strategy.bucket_mib=1", "strategy=ddp: calibrate measures the machine by plain ddp"),
        ("calibrate --name a/b", "--name=a/b: must be the name of a file"),
        ("calibrate --output /proc/none", "; --output names another folder"),
        ("calibrate --name laptop", "--name=laptop: is a cluster of daso-bench itself"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(
    request_words: str,
    message: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(local, "launch", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(local, "warm", lambda: None)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert code_of(*shlex.split(request_words)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said
    assert said.startswith("daso-bench: ")
    assert "Traceback" not in said
    assert list(here.iterdir()) == []
