"""vLLM as the engine: `vllm_engine` samples with it and updates its weights; there are three ways to reach it.

http_server       a server with vLLM's OpenAI-compatible API
in_process        the package, in this process
separate_samplers servers in pods of the job's own, several of them
requests          the parameters of a request, the same for all ways; seeds
image_prompts     prompts with images as it takes them
responses         the server's JSON
weight_files      new weights as files for vLLM to read
weight_transfer   vLLM's own weight API, where a server has our backend of it
weight_check      verifies that it has them: its log-probs against the trainer's
version_check     the same for servers that take a version over later
"""
