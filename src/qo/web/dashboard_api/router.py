"""The routes of `/api/v1/dashboard`."""

from litestar import Router

from qo.web.dashboard_api.actions import act, clean
from qo.web.dashboard_api.overview import show_overview
from qo.web.dashboard_api.read import (
    draw_workflow,
    list_documents,
    list_worker_documents,
    show_document,
    show_session,
    show_versions,
)

router = Router(
    path="/api/v1/dashboard",
    route_handlers=[
        show_session,
        show_overview,
        list_documents,
        show_document,
        show_versions,
        list_worker_documents,
        draw_workflow,
        act,
        clean,
    ],
    tags=["dashboard"],
)
