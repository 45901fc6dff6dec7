# Why a message did not arrive, and traces.
.PHONY: test-why test-why-size test-telemetry test-dashboard
test-why: $(OK) ## every verdict of `aerobee why` by real flows, half of them by the Java client (JDK, Maven)
	$(V)/bin/pytest -q -m "not slow" tests/why tests/cli/test_why.py $(ARGS)

test-why-size: $(OK) ## the time of an answer with a million messages in 300 topics
	$(V)/bin/pytest -q -s -m slow tests/why/test_size.py $(ARGS)

test-telemetry: $(OK) ## OpenTelemetry in the SDK, and one trace with its Java agent (JDK, Maven)
	$(V)/bin/pytest -q tests/telemetry $(ARGS)

test-dashboard: $(OK) ## the Grafana dashboard's expressions, asked of a real Prometheus (Debian: prometheus)
	$(V)/bin/pytest -q -m "slow or not slow" tests/docs/test_dashboard.py tests/docs/test_dashboard_queries.py $(ARGS)
