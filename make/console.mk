# The console's pages in a real browser: Chromium on PATH (Debian: apt-get install chromium), npm for axe-core.
.PHONY: test-console test-console-apache docs-images
$(V)/.browser: $(OK)
	@$(V)/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[browser]'
	@touch $@

test-console: $(V)/.browser ## the console's pages in Chromium, against an embedded broker (Chromium, npm)
	$(V)/bin/pytest -q -m "browser and not apache" tests/console $(ARGS)

test-console-apache: $(V)/.browser ## the same against Apache RocketMQ 5.5.0 (also JDK, Maven)
	$(V)/bin/pytest -q -m "browser and apache" tests/console $(ARGS)

docs-images: $(V)/.browser ## the documents' pictures of the console, by its tests
	AEROBEE_DOCS_IMAGES=1 $(V)/bin/pytest -q -m "browser and not apache" -k pictures tests/console $(ARGS)
