"""One file per kind of input; each lists where images are as ImageRefs."""
