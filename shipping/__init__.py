"""The operator's image and the files of a release: `make image` and `make release`."""
