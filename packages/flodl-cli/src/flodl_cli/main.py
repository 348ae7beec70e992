"""Entry point of `fdl`."""


def main() -> None:
    raise SystemExit(2)
