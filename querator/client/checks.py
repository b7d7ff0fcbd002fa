"""What a program passes is judged at once."""


def check(name: str, value: int, least: int, most: int) -> None:
    """Raises ValueError naming the option."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")
