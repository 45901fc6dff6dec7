# Figures: each one that the README states comes from one of these.
BENCH_OK := $(V)/.bench-installed

$(BENCH_OK): $(OK)
	@$(V)/bin/pip install -q --disable-pip-version-check 'matplotlib>=3.8'
	@touch $@

.PHONY: bench-compare
bench-compare: $(BENCH_OK) ## Aerobee beside Apache RocketMQ (needs a JDK, Maven and cc; FULL=1: all rows)
	$(V)/bin/python -m bench.compare $(if $(FULL),--full) $(ARGS)

.PHONY: bench-quick
bench-quick: $(OK) ## CPU per message beside the recorded figures; fails when a quarter was lost
	$(V)/bin/python -m bench.quick $(ARGS)
