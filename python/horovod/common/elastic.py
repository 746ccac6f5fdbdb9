"""Horovod's elastic training, as far as it does not depend on a framework."""

from ronde.elastic import (
    HostUpdateResult,
    ObjectState,
    State,
    WorkerNotificationManager,
    notification_manager,
    run_fn,
)

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]
