"""Administration from Python: topics, groups, lag, resets, brokers, users."""

from __future__ import annotations

from aerobee.client.admin.groups import GroupAdmin
from aerobee.client.admin.topics import TopicAdmin
from aerobee.client.admin.users import Users
from aerobee.client.core import Core


class Admin(TopicAdmin, GroupAdmin):
    """`aerobee topic`, `group` and `cluster` as an API."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.users = Users(core)
