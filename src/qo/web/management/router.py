"""The routes of `/api/tasks`."""

from litestar import Router

from qo.web.management.actions import (
    cancel_task,
    clean_up,
    delete_task,
    limit_rate,
    pause,
    prioritise_managed,
    reschedule_managed,
    resume,
    retry_task,
    run_managed_now,
)
from qo.web.management.bulk_actions import (
    cancel_matching,
    delete_matching,
    prioritise_matching,
    reschedule_matching,
    retry_matching,
    run_matching_now,
)
from qo.web.management.read import get_task, list_managed, show_managed_stats
from qo.web.management.submit import create_task

router = Router(
    path="/api/tasks",
    route_handlers=[
        create_task,
        list_managed,
        clean_up,
        show_managed_stats,
        pause,
        resume,
        limit_rate,
        retry_matching,
        cancel_matching,
        delete_matching,
        run_matching_now,
        reschedule_matching,
        prioritise_matching,
        get_task,
        delete_task,
        retry_task,
        cancel_task,
        run_managed_now,
        reschedule_managed,
        prioritise_managed,
    ],
    tags=["management"],
)
