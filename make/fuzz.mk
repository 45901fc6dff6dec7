# Fuzz: the decoders without a socket, and a live server.
FUZZ_SECONDS ?= 3600
FUZZ_OK := $(V)/.fuzz-installed

.PHONY: fuzz-quick fuzz fuzz-coverage
fuzz-quick: $(OK) ## decoders, a live server with and without its compiled part, signatures and TLS records, up to 30 s each
	$(V)/bin/python tests/fuzz/fuzz_decoder.py --seconds 30 $(ARGS)
	$(V)/bin/python tests/fuzz/fuzz_server.py --seconds 30 $(ARGS)
	AEROBEE_PURE=1 $(V)/bin/python tests/fuzz/fuzz_server.py --seconds 15 $(ARGS)
	$(V)/bin/python tests/fuzz/fuzz_access.py --seconds 20 $(ARGS)
	$(V)/bin/python tests/fuzz/fuzz_live.py --frames 4000 --limit 30

FRAMES ?= 1000000
.PHONY: fuzz-live
fuzz-live: $(OK) ## every request code against a broker with data, each answered within a second, FRAMES=1000000
	$(V)/bin/python tests/fuzz/fuzz_live.py --frames $(FRAMES) --seed $(SEED) $(ARGS)

fuzz: $(OK) ## the same for an hour each (FUZZ_SECONDS)
	$(V)/bin/python tests/fuzz/fuzz_decoder.py --seconds $(FUZZ_SECONDS) $(ARGS)
	$(V)/bin/python tests/fuzz/fuzz_server.py --seconds $(FUZZ_SECONDS) $(ARGS)
	AEROBEE_PURE=1 $(V)/bin/python tests/fuzz/fuzz_server.py --seconds $(FUZZ_SECONDS) $(ARGS)
	$(V)/bin/python tests/fuzz/fuzz_access.py --seconds $(FUZZ_SECONDS) $(ARGS)

.PHONY: reloads
reloads: $(OK) ## 1,000 reloads of users and certificates under load, which drop no connection
	AEROBEE_RELOADS=1000 $(V)/bin/pytest -q tests/tls/test_tls.py -k reloads_under_load

$(FUZZ_OK): $(OK)
	@$(V)/bin/pip install -q --disable-pip-version-check 'atheris>=3.0'
	@touch $@

fuzz-coverage: $(FUZZ_OK) ## the decoders, guided by coverage (atheris), FUZZ_SECONDS=3600; what is new joins tests/fuzz/corpus.txt
	$(V)/bin/python tests/fuzz/corpus.py --seconds $(FUZZ_SECONDS) $(ARGS)

INPUTS ?= 100000000
.PHONY: fuzz-deep
fuzz-deep: $(BUILD_OK) ## the compiled decoders beside Python's, guided by coverage of the C, under the address sanitizer, INPUTS=100000000 (clang, libclang-rt-14-dev; ARGS="--seconds 600": at most)
	$(V)/bin/python tests/fuzz/fuzz_deep.py --runs $(INPUTS) $(ARGS)

.PHONY: flood
flood: $(OK) ## clients that could stop the others, beside one that works (ARGS="cold join"; cold needs root)
	$(V)/bin/python -m bench.flood $(ARGS)

.PHONY: bench-hotpath
bench-hotpath: $(OK) ## CPU per message inside the process, in each codec (ARGS="--profile")
	$(V)/bin/python -m bench.hotpath $(ARGS)

.PHONY: bench-signed
bench-signed: $(OK) ## CPU per send signed against unsigned, and under TLS against plain, by turns
	$(V)/bin/python -m bench.signed $(ARGS)
	$(V)/bin/python -m bench.tls_cost $(ARGS)
