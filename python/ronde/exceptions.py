"""What a job can raise; ``horovod.common.exceptions`` gives the same classes under the names scripts know."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective did not come about: a rank was lost, the ranks disagree, or there is no job.

    >>> issubclass(HorovodInternalError, RuntimeError)
    True
    """


class InitializationError(HorovodInternalError, ValueError):
    """``init()``, or registering a process set, failed; scripts expect a ``ValueError`` of both.

    >>> issubclass(InitializationError, ValueError)
    True
    """


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """Hosts joined or are about to leave an elastic job; ``skip_sync`` says that no state is lost by it.

    >>> HostsUpdatedInterrupt(skip_sync=True).skip_sync
    True
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is not of the version that was asked for.

    >>> error = HorovodVersionMismatchError("torch", "2.0.1", "2.3.0")
    >>> error.name, error.version, error.installed_version
    ('torch', '2.0.1', '2.3.0')
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {version} was asked for, but {installed_version} is installed", name=name)
        self.version = version
        self.installed_version = installed_version
