"""What the checks use of pytest, for machines with a GPU that do not have it; ``run.py`` puts it in its place.

Only what runs inside the ranks: contexts that expect an exception or a warning. Marks have no effect, since nobody
collects tests here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any


class _Raises:
    """Expects an exception, and keeps it."""

    value: Any = None

    def __init__(self, expected: Any, match: str | None = None) -> None:
        self._expected, self._match = expected, match

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            raise AssertionError(f"nothing was raised, but {self._expected} was expected")
        if not isinstance(error, self._expected):
            return False
        self.value = error
        return self._match is None or self.match(self._match)

    def match(self, pattern: str) -> bool:
        """Fail unless the pattern is found in what the exception says."""
        if re.search(pattern, str(self.value)) is None:
            raise AssertionError(f"{pattern!r} is not in {str(self.value)!r}")
        return True


class _Warns(warnings.catch_warnings):
    """Expects a warning."""

    def __init__(self, expected: type[Warning], match: str) -> None:
        super().__init__(record=True)
        self._expected, self._match = expected, match

    def __enter__(self) -> Any:
        self._found: Any = super().__enter__()
        warnings.simplefilter("always")
        return self._found

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        found = [warning for warning in self._found if issubclass(warning.category, self._expected)]
        if error[0] is None and not any(re.search(self._match, str(warning.message)) for warning in found):
            raise AssertionError(f"no warning says {self._match!r}: {[str(warning.message) for warning in found]}")


class _Marks:
    """Whatever a test is marked with."""

    def __getattr__(self, name: str) -> Callable[..., Callable[[Any], Any]]:
        return lambda *_, **__: lambda test: test


raises = _Raises
warns = _Warns
mark = _Marks()
