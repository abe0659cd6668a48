"""The EAGLE-3 draft: a small decoder that reads the target's hidden states and proposes its next tokens.

Plain torch, to be read in one sitting: ``config`` (its sizes and switches, which Inspect reads without torch), ``rope`` and
``attention`` (their formulas), ``draft`` (the module itself), ``latent`` (the attention of DeepSeek's and Kimi's drafts), ``target``
(the two matrices of the target that it lives between). ``fast`` unrolls the same module as training does, with ``rows``, ``reused``,
``causal`` and ``diagonal``; kernels have files of their own. Parameters carry the names of SGLang's checkpoint and the forward is
that of SGLang's ``LlamaForCausalLMEagle3`` or ``Eagle3DeepseekV2ForCausalLM``. Nothing here knows of processes or devices.
"""
