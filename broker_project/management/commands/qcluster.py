"""``manage.py qcluster``: django-q2's cluster, whose processes die with it and show whether they work."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from django.conf import settings
from django.db import connections
from django_q.management.commands.qcluster import Command as QClusterCommand
from django_q.signals import pre_enqueue

from broker_project.lib.processes import let_no_fork_outlive_us
from broker_project.lib.redis.startup import ensure_redis
from broker_project.lib.var_folder_lock import hold_var_folder
from broker_project.ops.clock.cluster import install_worker_hooks
from broker_project.ops.clock.queue import queue_sync_tasks


class Command(QClusterCommand):  # type: ignore[misc]
    def handle(self, *args: Any, **options: Any) -> None:
        hold_var_folder(settings.BROKER.var)
        let_no_fork_outlive_us()
        for connection in connections.all():
            # A pool does not survive a fork: its threads are gone and its sockets would be shared.
            connection.settings_dict["OPTIONS"].pop("pool", None)
        install_worker_hooks()
        pre_enqueue.connect(queue_sync_tasks, dispatch_uid="broker-queue")
        if os.environ.get("BROKER_SUPERVISED") == "1":
            # The supervisor looks after Redis.
            super().handle(*args, **options)
            return
        with ensure_redis():
            super().handle(*args, **options)
            # django-q2 returns as soon as its sentinel has started; Redis must run as long as that does.
            for child in multiprocessing.active_children():
                child.join()
