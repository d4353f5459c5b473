# Two targets do everything on a machine with Python 3.11 to 3.13, make and git: `make run`, `make test`.
PYTHON ?= python3
VENV := .venv
comma := ,
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-to-run
READY := $(VENV)/.ready

# Where this is set, each worker of pytest and each process of a test compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow test-services test-slurm test-faults soak test-browser test-peers test-recipes test-trackers test-agents bench \
	knobs lr-knobs docs lint help

help:
	@echo "make run        set up, run sweeps/beta2_eps.yaml, export its heatmap"
	@echo "make test       set up, run the tests"
	@echo "make test-slow  the tests that take minutes, and every property with all its examples"
	@echo "make test-services  what starts Ray, MLflow or Slurm's jobs"
	@echo "make test-slurm  jobs of a real Slurm on this machine; as root, after apt-get install slurm-wlm munge"
	@echo "make test-faults  Ray, clusters, MLflow, memory and every single write under faults; as root, half an hour"
	@echo "make soak       200 random kills over a 50-trial sweep; half an hour"
	@echo "make test-browser  the report, MLflow and Optuna's dashboard in a Chromium, which must be installed"
	@echo "make test-peers  products with the Hessian beside those of curvlinops"
	@echo "make test-recipes  the recipe for JAX and optax, which it installs"
	@echo "make test-trackers  Weights & Biases and TensorBoard, which it installs, also under faults; as root, ten minutes"
	@echo "make test-agents  sweep mcp over a pipe with the package's own client, which it installs"
	@echo "make bench      sweep beside what one would use instead; half an hour"
	@echo "make knobs      run every file of sweeps/knobs and draw their maps; about an hour"
	@echo "make lr-knobs   run every file of sweeps/lr_knobs, and write the table and the picture of docs/knobs.md; an hour or two"
	@echo "make docs       build the documentation as a site, build/site/index.html"
	@echo "make lint       check style and types"

run: $(RUN_READY)
	$(BIN)/sweep run sweeps/beta2_eps.yaml
	$(BIN)/sweep export heatmap beta2_eps
	@echo "the stability map:  results/beta2_eps/heatmap.png"
	@echo "the report:         results/beta2_eps/report.html"
	@echo "the MLflow store:   results/mlflow.db  ($(BIN)/sweep ui shows it)"

# The longest files come first, so that neither worker is left with one of them in the end.
test: $(READY)
	$(BIN)/python -m pytest \
		-m "not slow and not services and not slurm and not faults and not soak and not peers and not recipes and not trackers and not agents" \
		-n 2 --dist loadfile --no-loadscope-reorder \
		tests/end_to_end tests/faults tests/contract tests/processes tests/unit

test-slow: $(READY)
	$(BIN)/python -m pytest --hypothesis-profile "every example" \
		-m "(slow or hypothesis) and not services and not slurm and not recipes and not agents"

test-services: $(READY)
	$(BIN)/python -m pytest -m "services and not slurm and not faults and not agents"

# Needs the packages slurm-wlm and munge of Debian or Ubuntu, control groups v1, and root. It starts daemons of its own.
test-slurm: $(READY)
	$(BIN)/python -m pytest -m slurm

test-faults: $(READY)
	$(BIN)/python -m pytest -m "faults and not slurm and not trackers"

soak: $(READY)
	$(BIN)/python -m pytest -s -m soak

test-browser: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --quiet \
		--editable '.[browser,optuna-dashboard]'
	$(BIN)/python -m pytest tests/browser

# Their dependencies would replace some of ours, so they stand in a folder of their own.
test-peers: $(READY)
	PIP_CONSTRAINT= $(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade --no-deps --target build/peers \
		curvlinops-for-pytorch==3.0.1 backpack-for-pytorch==1.7.1 einconv==0.1.0 einops==0.8.2 linear_operator==0.6.1 \
		opt_einsum==3.4.0 unfoldNd==0.2.3 torchvision==0.28.0
	PYTHONPATH=build/peers $(BIN)/python -m pytest -m peers tests/unit/objectives/instruments/test_curvature.py

# They replace nothing that is there.
test-recipes: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[recipes]'
	$(BIN)/python -m pytest -m recipes

# As these.
test-trackers: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --quiet \
		--editable '.[tensorboard,wandb]'
	$(BIN)/python -m pytest -m trackers

# As these.
test-agents: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[mcp]'
	$(BIN)/python -m pytest -m agents

bench: $(READY)
	$(BIN)/python benchmarks/throughput.py --json results/throughput.json

# A picture with 256 colours is a third as large and looks the same.
knobs: $(READY)
	mkdir -p docs/pictures/knobs results/reference/knobs
	for file in sweeps/knobs/*.yaml; do \
		name=$$(basename $$file .yaml) && picture=docs/pictures/knobs/$$name.png && \
		$(BIN)/sweep run $$file && \
		$(BIN)/sweep export heatmap knob_$$name --output $$picture && \
		$(BIN)/python -c 'import sys; from PIL import Image; path = sys.argv[1]; Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)' $$picture && \
		$(BIN)/sweep export heatmap knob_$$name --output results/reference/knobs/$$name.csv || exit; \
	done

# The grid has the losses. A search adds trials at the edge, with the values of the knob as they are listed. In the end
# other seeds are asked whether the edges that seem to have moved a little have done so. Rows are counted by a reader of
# CSV, since a value with line breaks, such as a separator, takes several lines.
lr-knobs: $(READY)
	for file in sweeps/lr_knobs/*.yaml; do \
		folder=results/lr_knob_$$(basename $$file .yaml) && \
		ends=$$(sed -n 's/.*lr: {log: \[\(.*\), \(.*\)\], num.*/\1,\2/p' $$file) && \
		$(BIN)/sweep run $$file && \
		rows=$$($(BIN)/python -c 'import csv, sys; print(sum(1 for _ in csv.reader(sys.stdin)))' < $$folder/trials.csv) && \
		$(BIN)/sweep run $$file --axis lr=log:$$ends --set search.method=edge --set search.along=lr \
			--set search.precision=1.2 --set search.trials=$$(($$rows + 40)) || exit; \
	done
	$(BIN)/python benchmarks/lr_knobs.py --repeat | while read -r arguments; do $(BIN)/sweep $$arguments || exit; done
	$(BIN)/python benchmarks/lr_knobs.py

docs: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[docs]'
	$(BIN)/python docs/site/pages.py build/pages
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml
	@echo "open build/site/index.html; its search needs: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

lint: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

# `make run` installs what trains, `make test` and all others the rest. The build tools are pinned by the same file as
# everything else. uv is faster where it is there, and brings pip, which other targets use, sooner than venv does; it
# does not read the settings of pip, which goes on where it fails.
# For a run modules are compiled when they are imported first, since few are.
define set_up
$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed; say make PYTHON=python3.12")'
@echo "setting up $(VENV); the first time takes some minutes"
{ command -v uv > /dev/null && $(PYTHON) -m venv --without-pip $(VENV) && \
	uv pip install --python $(BIN)/python --constraint constraints.txt --build-constraint constraints.txt pip --editable '$(1)'; } || \
	{ $(PYTHON) -m venv $(VENV) && \
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check $(2) --editable '$(1)'; }
endef

$(RUN_READY): pyproject.toml constraints.txt
	$(call set_up,.[run],--no-compile)
	@touch $@

$(READY): pyproject.toml constraints.txt
	$(call set_up,.[test$(comma)lint])
	@touch $(RUN_READY) $@
