# The message store: its own tests and figures.
.PHONY: test-store bench-store
test-store: $(OK) ## the store's unit tests
	$(V)/bin/pytest -q tests/store $(ARGS)

bench-store: $(OK) ## appends, group commit, rolls and recovery beside the machine's ceilings
	$(V)/bin/python -m bench.store $(ARGS)
