"""An instrument beside the product: the simulated vLLM, and the replay of fleets of it.

Its commands are those of `breakeven` (`engine-sim`, `simulate`), which import it on use; the operator does without it.
"""
