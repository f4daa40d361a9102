"""The clock and the calendar.

Keep: a time is told with its zone and a date with its day of the week, so that nothing has to be
worked out from them.
"""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from chatapp.tools.tool import ToolError
from chatapp.userfiles import quoted


def now(zone: str | None = None) -> datetime:
    """The time, in a zone such as Europe/Paris; in the machine's own without one.

    Raises ToolError for a zone there is not.
    """
    if not zone:
        return datetime.now().astimezone()
    try:
        return datetime.now(ZoneInfo(zone))
    except (OSError, ValueError, LookupError):
        raise ToolError(
            f"there is no time zone {quoted(zone)}; expected a name such as Europe/Paris"
        ) from None


def clock(zone: str | None = None) -> str:
    """The date and the time in words."""
    time = now(zone)
    return f"{in_words(time.date())}, {time:%H:%M:%S} {time.tzname()}"


def calendar(day: str, days: int = 0, until: str | None = None) -> str:
    """What a date is, or one so many days later, and how many days there are until another.

    day, until: as 2026-11-23, or "today". Raises ToolError.
    """
    start = _date(day)
    try:
        start += timedelta(days=days)
    except OverflowError:
        raise ToolError("there is no date so far away") from None
    words = in_words(start)
    if until is None:
        return words
    end = _date(until)
    return f"{words}; {(end - start).days:,} days until {in_words(end)}"


def in_words(day: date) -> str:
    """A date with its day of the week and its week."""
    _, week, _ = day.isocalendar()
    return f"{day:%A}, {day.day} {day:%B} {day.year} ({day.isoformat()}, week {week})"


def _date(text: str) -> date:
    if text.strip().lower() == "today":
        return now().date()
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ToolError(f"{quoted(text)} is no date; expected one such as 2026-11-23") from None
