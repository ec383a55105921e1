"""An instrument beside the product: the simulated vLLM, and the replay of fleets of it.

Two commands of `breakeven` (`engine-sim`, `simulate`) import it on use; the operator does without it.
"""
