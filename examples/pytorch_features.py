"""RoSE on the features of a PyTorch encoder: dump four arrays there, evolve them here.

    python examples/pytorch_features.py dump     # wherever PyTorch runs; writes features.npz
    python examples/pytorch_features.py          # wherever rose_jax runs; writes predictions.npz
    python -m rose_jax.evolve features.npz       # the same from the command line

`dump` builds a small class-incremental task of its own (two random encoders and coloured noise for images), so
that it runs as it stands. In your code, replace `make_task` by your two encoders, your loaders and, if you
trained one, your projector; `encode` and `class_means` stay.
"""

import sys

import numpy as np

OLD_CLASSES, NEW_CLASSES, DIM = 6, 4, 64


def dump(path: str = "features.npz") -> None:
    """Everything PyTorch has to do."""
    import torch

    @torch.no_grad()
    def encode(encoder, loader) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, d] in the order of the loader (no shuffling: both encoders must see the same images)."""
        encoder.eval()
        batches = [(encoder(images).float().cpu().numpy(), labels.numpy()) for images, labels in loader]
        features, labels = zip(*batches, strict=True)
        return np.concatenate(features), np.concatenate(labels)

    old_encoder, new_encoder, old_train, new_train, test, projector = make_task(torch)
    z_old, labels = encode(old_encoder, test)
    z_new, _ = encode(new_encoder, test)
    np.savez(
        path,
        z_old=z_old,
        z_new=z_new,
        # the old classes as the old encoder saw them when their task ended: no exemplar is kept
        old_prototypes=class_means(*encode(old_encoder, old_train), range(OLD_CLASSES)),
        # the new classes as the new encoder sees them
        new_prototypes=class_means(*encode(new_encoder, new_train), range(OLD_CLASSES, OLD_CLASSES + NEW_CLASSES)),
        # nn.Linear computes x @ weight.T, and rose_jax multiplies rows from the right: hence the transpose
        projector=projector.weight.detach().numpy().T,
        labels=labels,  # optional, only to print accuracy
    )
    print(f"written: {path}")


def evolve(path: str = "features.npz") -> None:
    """Everything JAX has to do: a whole stream at once, then the same stream as a service would see it."""
    from rose_jax import Evolution, evolve_features

    with np.load(path) as file:
        arrays = dict(file)
    labels = arrays.pop("labels", None)

    result = evolve_features(**arrays)
    print(f"images {result.counts['images']}, prototypes {result.prototypes.shape}")
    if labels is not None:
        unmoved = np.concatenate([arrays["old_prototypes"], arrays["new_prototypes"]])
        cosines = arrays["z_new"] @ (unmoved / np.linalg.norm(unmoved, axis=1, keepdims=True)).T
        print(f"accuracy: {np.mean(cosines.argmax(1) == labels):.1%} with prototypes as they were,", end=" ")
        print(f"{np.mean(result.predictions == labels):.1%} with evolved ones")

    evolution = Evolution()
    state = evolution.init(arrays["old_prototypes"], arrays["new_prototypes"], arrays.get("projector"))
    answers = []
    for start in range(0, len(arrays["z_new"]), 32):  # 32 requests at a time, compiled once
        request = slice(start, start + 32)
        state, found = evolution.step(state, arrays["z_old"][request], arrays["z_new"][request])
        answers.append(np.asarray(found))
    same = np.mean(np.concatenate(answers) == result.predictions)
    print(f"call by call: {same:.1%} the same labels")
    np.savez("predictions.npz", predictions=result.predictions, prototypes=result.prototypes)


def class_means(features: np.ndarray, labels: np.ndarray, classes) -> np.ndarray:
    return np.stack([features[labels == c].mean(axis=0) for c in classes])


def make_task(torch):
    """Stand-ins: two encoders, loaders of old, new and test images, and a projector fitted on the new ones."""
    torch.manual_seed(0)
    classes = OLD_CLASSES + NEW_CLASSES
    colours = torch.randn(classes, 3, 1, 1)

    def encoder():
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, DIM, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )

    def loader(of_classes, images):
        labels = torch.tensor(of_classes)[torch.randint(len(of_classes), (images,))]
        pixels = colours[labels] + torch.randn(images, 3, 8, 8)
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pixels, labels), batch_size=64)

    old_encoder, new_encoder = encoder(), encoder()
    old_train, new_train = loader(range(OLD_CLASSES), 600), loader(range(OLD_CLASSES, classes), 400)
    projector = torch.nn.Linear(DIM, DIM, bias=False)
    with torch.no_grad():
        before = torch.cat([old_encoder(images) for images, _ in new_train])
        after = torch.cat([new_encoder(images) for images, _ in new_train])
        ridge = 1e-2 * torch.eye(DIM)
        projector.weight.copy_(torch.linalg.solve(before.T @ before + ridge, before.T @ after).T)
    return old_encoder, new_encoder, old_train, new_train, loader(range(classes), 1024), projector


if __name__ == "__main__":
    dump(*sys.argv[2:]) if sys.argv[1:2] == ["dump"] else evolve(*sys.argv[1:])
