"""Products of few rows on a CPU: weights in strips, and machine code for them.

    x_MK · w_KN      M rows of activations, a matrix that is read once for all of them

Decoding is made of such products, and on a CPU they were most of a token's time: XLA's library wants the matrix as it
stands, so that the columns it works on are a piece of each of K pages, and turns some of them around at every token.
Here the columns stand in strips, each in one piece of memory (`layout`), made once when weights come to the sampler; a
strip is multiplied by code for this processor's vectors (`tile`), and strips are shared out over XLA's own threads
(`handler`). llvmlite makes the code when it is first asked for (`program`). Without it, with several devices, on other
processors and in other number formats, products are XLA's.

A result is a sum over k in an order that depends on K alone: not on the rows beside it, nor on threads, nor on how wide
the processor's vectors are.

Letters: M rows, K inputs, N outputs, S strips, W columns of a strip.
"""
