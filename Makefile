# Everything works on a fresh machine with Python 3.11-3.13: each target makes .venv and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
only ?=
with ?=

.PHONY: demo test lint bench bench-gpu docs mutants placebo simulations reference chaos clean

demo: $(VENV)/.base ## environment; ddp and daso as real processes, then three seeds of `+study=quick` in virtual time; where the report is
	$(BIN)/daso-bench +study=quick launcher=local cluster=laptop strategy=ddp,daso seed=0
	$(BIN)/daso-bench +study=quick seed=0,1,2

test: $(VENV)/.dev ## environment and all tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: $(VENV)/.base ## one line per figure; `make bench only=NAME` for one; exit code 1 if any is short
	$(BIN)/python tests/bench json=results/bench.json $(if $(only),only=$(only))

bench-gpu: $(VENV)/.base ## our loop against a bare one, and what runs, on one GPU; `make bench-gpu only=PART with="KEY=VALUE ..."`
	$(BIN)/python tests/bench gpu json=results/bench_gpu.json $(if $(only),only=$(only)) $(with)

mutants: $(VENV)/.dev ## faults planted in strategies and the loop, and how many the proofs, the contract or their tests find
	$(BIN)/python tests/mutants/run.py

placebo: $(VENV)/.dev ## 100 whole studies of ddp against itself under another name: how many say that it is faster
	DASO_BENCH_STUDIES=100 $(BIN)/python -m pytest -q -s tests/runner/report/test_simulated_studies.py

simulations: $(VENV)/.dev ## the simulated studies behind intervals, verdicts and planning, with 2,000 studies a cell
	DASO_BENCH_STUDIES=2000 $(BIN)/python -m pytest -q tests/runner/report/statistics --timeout=3600

reference: $(VENV)/.base ## numbers of results/reference made again: `make reference only=NAME` compares, with=write stores
	$(BIN)/python scripts/reference.py $(only) $(with)

chaos: $(VENV)/.dev ## 100 random kills over a sweep of 24 runs, local and on the development cluster, which must be up
	eval "$$(scripts/slurm/dev_cluster env)" && $(BIN)/python tests/cluster/chaos.py --kills 100 --runs 24

docs: $(VENV)/.base ## the pages of docs/strategies.md, from the code
	$(BIN)/python scripts/strategy_pages.py

$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) build dist *.egg-info
