"""What `make image` and `make release` do: the operator's image, and the files of a release."""
