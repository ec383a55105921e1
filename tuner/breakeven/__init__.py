"""Whether, how and until which load speculative decoding pays."""

__version__ = "0.1.0"
