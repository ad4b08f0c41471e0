"""Writes datasets/digits.npz from scikit-learn's copy of the digits.

    python scripts/make_digits.py

The file is part of the project and its split is frozen: running this again must give the same arrays.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports] -- only this script needs it
from sklearn.model_selection import train_test_split  # pyright: ignore[reportMissingImports] -- same

SPLIT_SEED = 20120
VALIDATION, TEST = 288, 360


def main() -> None:
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    everything = np.arange(len(labels))
    rest, test = train_test_split(everything, test_size=TEST, stratify=labels, random_state=SPLIT_SEED)
    train, validation = train_test_split(
        rest, test_size=VALIDATION, stratify=labels[rest], random_state=SPLIT_SEED
    )
    np.savez_compressed(
        Path(__file__).parents[1] / "datasets" / "digits.npz",
        images=images,
        labels=labels,
        train=np.sort(train).astype(np.int16),
        validation=np.sort(validation).astype(np.int16),
        test=np.sort(test).astype(np.int16),
    )


if __name__ == "__main__":
    main()
