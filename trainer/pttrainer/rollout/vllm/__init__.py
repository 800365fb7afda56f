"""vLLM as the engine: `vllm_engine` samples with it and updates its weights; there are two ways to reach it.

http_server a server with vLLM's OpenAI-compatible API in_process the package, in this process requests the parameters
of a request, the same for both ways; seeds image_prompts prompts with images as it takes them responses the server's
JSON weight_files new weights as files for vLLM to read weight_check verifies that it has them: its log-probs against
the trainer's
"""
