# The SDK, the command and the examples.
.PHONY: test-sdk test-sdk-apache bench-sdk
test-sdk: $(OK) ## the SDK, the command and the examples against an embedded broker
	$(V)/bin/pytest -q tests/sdk tests/cli -m "not apache" $(ARGS)

test-sdk-apache: $(OK) ## the SDK with a real Apache RocketMQ 5.5.0 (JDK, Maven)
	$(V)/bin/pytest -q tests/sdk/test_apache.py $(ARGS)

bench-sdk: $(OK) ## messages through the SDK and back beside Java's client (JDK, Maven; FULL=1: a million)
	$(V)/bin/python -m bench.sdk $(if $(FULL),--count 1000000) $(ARGS)
