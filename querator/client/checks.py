"""Range checks of options, made when the program passes them."""


def check(name: str, value: int, least: int, most: int) -> None:
    """Raises a ValueError that names the option unless `value` is from `least` to `most`."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")
