"""Numbers as people say them: `1 run`, `9 runs`, `3 min`."""


def counted(number: int, noun: str) -> str:
    """`1 run`, `1,200 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """`42 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
