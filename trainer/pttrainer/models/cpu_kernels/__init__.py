"""Machine code for sampling on a CPU: products of few rows with weights in strips, and attention over the cache.

    x_MK · w_KN      M rows of activations, a matrix that is read once for all of them

Decoding is made of such products, and on a CPU they were most of a token's time: XLA's library wants the matrix as it
stands, so that the columns it works on are a piece of each of K pages, and turns some of them around at every token.
Here the columns stand in strips, each in one piece of memory (`strips`), made once when weights come to the sampler
(`weights`). Attention of one token per row (`attention`) was most of what was left: four calls a layer, each for one
thread, for some microseconds of work.

Both are made of one tile (`tile`), are called by XLA (`calls`) and share their work out over its threads (`sharing`).
llvmlite makes the code when it is first asked for (`program`). Without it, with several devices, on other processors
and in other number formats, all is XLA's.

A number is a sum in an order that depends on its own row alone: not on the rows beside it, nor on threads, nor on how
wide the processor's vectors are.

Letters: M rows, K inputs, N outputs, S strips, W columns of a strip.
"""
