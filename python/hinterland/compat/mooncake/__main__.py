"""Says where the folder is that makes `import mooncake.store` give Hinterland's store."""

import argparse
import pathlib


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m hinterland.compat.mooncake", description=__doc__)
    parser.add_argument("--path", action="store_true", required=True,
                        help="print the folder; put it in front of PYTHONPATH")
    parser.parse_args()
    print(pathlib.Path(__file__).resolve().parent / "path")


if __name__ == "__main__":
    main()
