"""Range checks of options, made when the program passes them."""


def check(name: str, value: int, least: int, most: int) -> None:
    """Raises an error that names the option: TypeError unless `value` is a whole number, ValueError
    unless it is from `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")
