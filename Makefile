# The two commands of the README: make demo, make test. Both set the environment up the first time.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
LOWER = .venv-lower
# Where the environment forbids it, each of pytest's workers would compile all tests again, for seconds.
unexport PYTHONDONTWRITEBYTECODE
UNIT = $(BIN)/python -m pytest tests/unit -n 2 --dist worksteal
# The unit part with its slow tests, for other versions.
WHOLE = tests/unit -m "not faults and not cluster and not docs and not deploy" -n 2 --dist worksteal
# Files with a marker: to collect all 7,000 tests takes each process 20 seconds.
marked = $(shell grep -rlE 'mark\.$(1)\b' tests --include='test_*.py' | sort)
INTEGRATION = $(BIN)/python -m pytest tests/integration -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-unit test-integration test-docs test-faults test-long test-cluster test-deploy test-lower test-versions test-tools test-gpu dist lint format docs \
	setup clean

demo: $(READY)
	$(BIN)/orchestrator sweep recommender dataset=synthetic epochs=40 --space mf --trials 12 --scheduler none --register demo
	$(BIN)/orchestrator promote demo --to champion
	@echo
	@echo "Try next ($(BIN) on your PATH, or: . $(BIN)/activate):"
	@echo "  orchestrator ui                                            the sweep in the MLflow UI"
	@echo "  echo '{\"user\": 3}' | orchestrator predict demo@champion --input - k=5"
	@echo "  orchestrator workloads recommender                         every parameter"
	@echo "  orchestrator run recommender backbone=lightgcn epochs=50   one experiment"
	@echo "  orchestrator doctor                                        what works on this machine"

# Both parts run, at the same time: the integration part waits for processes much of its time.
test: $(READY)
	@$(MAKE) --no-print-directory -j 2 -k test-unit test-integration

# Processes and servers are killed, stopped or taken away for a while, and all goes on: many minutes. While these tests
# wait, the slow ones run.
test-faults: $(READY)
	$(BIN)/python -m pytest $(call marked,(faults|slow)) -m "(faults or slow) and not cluster and not long" -n 4 --dist loadfile

# Variants of tests of test-faults and test-cluster: longer outages, the other of two faults, random kills. One to
# three hours; not in CI.
test-long: $(READY)
	$(BIN)/python -m pytest $(call marked,long) -m long

# On the topology of deploy/, without containers: PostgreSQL, MLflow with passwords, a Ray head and two workers.
# At most 20 minutes; the end reports what each fault cost. PostgreSQL and Chromium must be installed (Debian:
# apt-get install postgresql chromium).
test-cluster: $(READY)
	$(BIN)/python -m pytest tests/cluster -m "cluster and not long" -rP --show-capture=stdout

# The files of deploy/ on real containers (Docker with compose: builds two images, 8 GB) and on a real Slurm of two nodes;
# each is skipped where it is not there. Not in CI. What passed, when and on what is written to the record.
test-deploy: $(READY)
	ORCHESTRATOR_DEPLOY_RECORD=docs/deploy-last-run.txt $(BIN)/python -m pytest tests/deploy -m deploy -rA

test-unit: $(READY)
	$(UNIT)

test-integration: $(READY)
	$(INTEGRATION)

# Every command of README and docs/: parsed, planned where that is possible, five of them run.
test-docs: $(READY)
	$(BIN)/python -m pytest $(call marked,docs) -m docs

test-gpu: $(READY)
	$(BIN)/python -m pytest $(call marked,gpu) -m gpu

# Other minors of Ray and MLflow than the environment's, and the newest version of every package but torch that
# pyproject.toml allows, each laid over the environment: under 1 GB, a few minutes each.
VERSIONS = ray-2.58.1 ray-2.59.0 mlflow-3.16.1 newest
OVER = .venv-over
# What runs on each of them, and in make test-lower, in addition to the unit part: what ray_compat.py uses, where workers
# are placed, a sweep of groups, a run of two workers, flat trials, packs and their winners.
SUBSET = $(addprefix tests/integration/test_,ways.py groups.py ray_compat.py lost_devices.py placement.py) \
	-m "versions or not faults" -n 2 --dist loadfile

test-versions: $(VERSIONS:%=$(OVER)/%/.ready)
	@for version in $(VERSIONS); do \
		echo "== $$version"; \
		$(OVER)/$$version/bin/python -m pytest $(WHOLE) || exit; \
		$(OVER)/$$version/bin/python -m pytest $(SUBSET) || exit; \
	done

# An environment in which the packages of the first one can be imported, where it has none of its own.
define laid_over
$(PYTHON) -m venv --without-pip $(@D)
@printf '%s\n' "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" "$(CURDIR)" \
	> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
endef
install_over = $(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install --quiet

$(OVER)/%/.ready: $(READY)
	$(laid_over)
	$(install_over) --no-deps \
		$(addsuffix ==$(lastword $(subst -, ,$*)),$(if $(filter mlflow-%,$*),mlflow mlflow-skinny mlflow-tracing,ray))
	@touch $@

$(OVER)/newest/.ready: $(READY)
	$(laid_over)
	grep '^torch' constraints.txt > $(@D)/torch.txt
	$(install_over) --upgrade --upgrade-strategy eager -c $(@D)/torch.txt -e '.[dev]'
	@touch $@

# Exports and adapters for tools that are not in the environment, with these laid over it: under 1 GB.
OTHERS = onnx onnxscript onnxruntime faiss-cpu optuna-dashboard lightning accelerate ir-measures "ray[serve]"

test-tools: $(OVER)/tools/.ready
	$(OVER)/tools/bin/python -m pytest $(call marked,tools) -m tools

$(OVER)/tools/.ready: $(READY)
	$(laid_over)
	$(install_over) -c constraints.txt $(OTHERS)
	@touch $@

# Against the lowest versions that pyproject.toml allows, the unit part with PyTorch's plainest kernels: sums come out
# in another order than with this processor's own, as on a machine of another kind. One pass serves both.
test-lower: $(LOWER)/.ready
	ATEN_CPU_CAPABILITY=$${ATEN_CPU_CAPABILITY:-default} $(LOWER)/bin/python -m pytest $(WHOLE)
	$(LOWER)/bin/python -m pytest $(SUBSET)

# A wheel and an sdist in build/dist, from a small environment of their own: a laptop needs no more for the client.
TOOLS = .venv-dist
dist: $(TOOLS)/.ready
	rm -rf build/dist
	$(TOOLS)/bin/python -m build --outdir build/dist
	$(TOOLS)/bin/python -m twine check --strict build/dist/*

$(TOOLS)/.ready: constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build twine
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m tests.support.wording

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site in build/docs; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
		{ echo "Python 3.11 or 3.12 is needed; say which with: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Setting up $(VENV): about 7 GB with PyTorch's CUDA build, a few minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(LOWER)/.ready: pyproject.toml constraints-lower.txt
	$(PYTHON) -m venv $(LOWER)
	$(LOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lower.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(LOWER) $(OVER) $(TOOLS) .cache .pytest_cache .mypy_cache .ruff_cache build *.egg-info
