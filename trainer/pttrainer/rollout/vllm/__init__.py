"""vLLM as the engine: `engine` asks it and renews its weights, `server` and `inprocess` are the two ways to it.

asking     what is asked of it, the same words for both ways; seeds
answers    what a server's JSON says
weights    new weights as files that it reads
check      proof that it has them: its log-probs beside the trainer's
"""
