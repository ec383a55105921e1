"""Whether an arm answers as no speculation does: the prompts, answers and their judgement, and the test.

The way is `prompt_set`, the requests; `answer`, what an engine said, and what an engine without speculation holds of
each token; `answer_gate`, the word for an arm. Nothing here knows a socket: `breakeven.load_driver.asking` asks.
"""
