"""The routes of `/api/v1`."""

from litestar import Router

from qo.web.v1.actions import (
    archive_task,
    cancel_task,
    delete_task,
    drain_worker,
    limit_rate,
    limit_types,
    pause_tasks,
    prioritise_task,
    replay_task,
    reschedule_task,
    resume_tasks,
    run_task_now,
    show_controls,
)
from qo.web.v1.audit import list_actions
from qo.web.v1.batches import cancel_workflow, list_workflows, replay_workflow, show_batch, show_batches, show_workflow
from qo.web.v1.bulk_actions import (
    archive_tasks,
    cancel_tasks,
    delete_tasks,
    prioritise_tasks,
    replay_tasks,
    reschedule_tasks,
    run_tasks_now,
)
from qo.web.v1.events import listen
from qo.web.v1.limits import change_limit, show_limits
from qo.web.v1.read import explain_waiting, list_tasks, list_workers, show_history, show_result, show_stats, show_task
from qo.web.v1.schedules import (
    add_schedule,
    list_schedules,
    pause_schedule,
    remove_schedule,
    resume_schedule,
    run_schedule,
    show_schedule,
)
from qo.web.v1.submit import submit_task, submit_tasks

router = Router(
    path="/api/v1",
    route_handlers=[
        submit_task,
        submit_tasks,
        list_tasks,
        show_task,
        cancel_task,
        show_history,
        show_result,
        replay_task,
        replay_tasks,
        cancel_tasks,
        archive_tasks,
        delete_task,
        delete_tasks,
        run_tasks_now,
        reschedule_tasks,
        prioritise_tasks,
        archive_task,
        run_task_now,
        reschedule_task,
        prioritise_task,
        explain_waiting,
        show_stats,
        list_workers,
        drain_worker,
        show_controls,
        pause_tasks,
        resume_tasks,
        limit_rate,
        limit_types,
        show_limits,
        change_limit,
        show_batches,
        show_batch,
        list_schedules,
        show_schedule,
        add_schedule,
        pause_schedule,
        resume_schedule,
        run_schedule,
        remove_schedule,
        list_workflows,
        show_workflow,
        cancel_workflow,
        replay_workflow,
        listen,
        list_actions,
    ],
    tags=["v1"],
)
