# `make demo` and `make test` need only Python 3.11 and make; everything goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
DEMO := build/demo

.PHONY: help demo test test-flink lint types format constraints benchmarks clean

help:
	@echo "make demo         draw a sample set, convert it, train on it, look at it"
	@echo "make test         the whole test suite"
	@echo "make lint types   ruff and mypy"
	@echo "make constraints  refresh the exact versions in constraints.txt"

# Exact versions from constraints.txt; again whenever it or setup.py changes.
$(STAMP): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools wheel -c constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[test,report,s3,heif]' -c constraints.txt
	@touch $@

demo: $(STAMP)
	rm -rf $(DEMO)
	$(BIN)/imagebeam sample $(DEMO)/images
	$(BIN)/imagebeam convert --input $(DEMO)/images --output $(DEMO)/dataset \
	  --split train=0.8,validation=0.1,test=0.1
	$(BIN)/imagebeam train $(DEMO)/dataset --workdir $(DEMO)/run \
	  --image_size 48x48 --epochs 25 --batch_size 32
	$(BIN)/imagebeam evaluate $(DEMO)/run
	$(BIN)/imagebeam export $(DEMO)/run --output $(DEMO)/model
	$(BIN)/imagebeam predict $(DEMO)/model $(DEMO)/images/happy/turned-by-exif.jpg
	$(BIN)/imagebeam verify $(DEMO)/dataset
	$(BIN)/imagebeam preview $(DEMO)/dataset

test: $(STAMP)
	$(BIN)/python -m pytest -rs

# Needs Beam's Flink job server: --flink_job_server_jar or IMAGEBEAM_FLINK_JOB_SERVER_JAR.
test-flink: $(STAMP)
	$(BIN)/python -m pytest -m flink -rs

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The newest versions that fit the ranges in setup.py, resolved in an empty environment.
constraints:
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet --upgrade pip setuptools wheel
	build/constraints/bin/python -m pip install --quiet '.[test,report,s3,heif]'
	build/constraints/bin/python -m pip freeze --all --exclude imagebeam > constraints.txt

clean:
	rm -rf $(VENV) build dist *.egg-info
