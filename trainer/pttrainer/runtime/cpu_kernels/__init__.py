"""CPU kernels: for sampling few-row matmuls with column-blocked weights, and attention; for training attention.

x_MK · w_KN      M rows of activations, a matrix that is read once for all of them

Decoding consists of such products, and on a CPU they took most of a token's time: XLA's library takes the matrix in its
usual layout, where the columns of one step are scattered over K pages, and transposes some matrices at every token.
Here the columns are stored in blocks, each contiguous in memory (`blocked_matmul`), laid out once when weights come to
the sampler (`models.decoding.column_blocks`). Attention of one token per row (`cached_attention`) was most of the rest:
four calls a layer, each single-threaded, for microseconds of work.

In training attention was a fifth of a step for a tenth of its multiply-adds, as scores were written and read several
times. `packed_attention` holds those of 32 queries at once (`score_blocks`), and skips keys that none of them sees.

All use one register tile (`register_tile`), are called by XLA (`xla_ffi`) and run on its threads (`thread_pool`).
llvmlite compiles the code on first use (`jit`). Without it, with several devices, on other processors and in other
number formats, XLA computes everything.

The order of a sum depends on its own row only: not on other rows, threads, or the processor's vector width.

Letters: M rows, K inputs, N outputs, S column blocks, W columns of a block.
"""
