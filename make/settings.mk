.PHONY: docs-settings
docs-settings: $(OK) ## write docs/settings.md from the code
	@$(V)/bin/python -m aerobee.broker.settings > docs/settings.md
