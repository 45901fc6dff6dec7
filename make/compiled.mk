# The compiled part of the broker, and the Python path that it replaces.
.PHONY: test-pure
test-pure: $(OK) ## the hot path, the store and the ways beside each other without the compiled part
	AEROBEE_PURE=1 $(V)/bin/pytest -q -m "$(QUICK)" tests/two_ways tests/store tests/broker/test_hot_codecs.py \
	  $(wildcard tests/broker/test_send*.py tests/broker/test_connection*.py) $(ARGS)

ASAN := build/asan
SANITIZED := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined

.PHONY: asan
asan: $(BUILD_OK) ## the compiled part under the address sanitizer: its tests and the decoders' fuzz (gcc)
	@rm -rf $(ASAN) && mkdir -p $(ASAN)
	@cp -a broker client conf pipeline protocol src systemd tests hatch_build.py pyproject.toml $(ASAN)
	@rm -f $(ASAN)/broker/compiled/*.so
	@cd $(ASAN) && AEROBEE_CFLAGS="$(SANITIZED)" $(abspath $(V))/bin/python hatch_build.py
	cd $(ASAN) && export LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=src PYTHONMALLOC=malloc && \
	  $(abspath $(V))/bin/python -c "from aerobee.broker import compiled; assert compiled.hot, compiled.PATH" && \
	  $(abspath $(V))/bin/pytest -q --capture=sys -p no:cacheprovider tests/two_ways/test_compiled.py \
	    tests/two_ways/test_compiled_signed.py tests/two_ways/test_gathered.py tests/two_ways/test_repeated_pulls.py \
	    tests/store/test_sync_thread.py tests/store/test_facts.py \
	    tests/store/test_plain_read.py tests/store/test_index.py $(ARGS) && \
	  $(abspath $(V))/bin/python tests/fuzz/fuzz_decoder.py --seconds 30

.PHONY: bench-paths
bench-paths: $(OK) ## the broker with and without its compiled part, in turns (cc; ARGS="--pairs 3")
	$(V)/bin/python -m bench.paths $(ARGS)
