"""The operator's image and the files of a release (`make image`, `make release`), and the files that `make generate` makes of code."""
