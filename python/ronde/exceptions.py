"""What a job can raise; ``horovod.common.exceptions`` gives the same classes under the names scripts know."""


class HorovodInternalError(RuntimeError):
    """A collective did not come about: a rank was lost, the ranks disagree, or there is no job.

    >>> issubclass(HorovodInternalError, RuntimeError)
    True
    """
