"""How to reach model servers: TensorRT-LLM, TGI, vLLM, llama.cpp and anything that speaks OpenAI."""
